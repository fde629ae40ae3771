//! The readers of one session: each gets a snapshot, then updates, as fast as it takes them.
//!
//! A reader's channel holds one delivery. While it is full, what comes is merged into one pending update, which is as good
//! (I7): a slow reader gets fewer updates, never wrong ones. Nobody waits for it.

use std::sync::Arc;

use ccsd_profile::{Profile, Session as SessionInfo, Update};
use crossbeam_channel::{Receiver, Select, Sender, TrySendError, bounded};

use crate::protocol::message::SessionEnd;

/// A pending update beyond this many bytes is dropped, and its reader starts anew from a snapshot when it is ready: a
/// snapshot is made when it is needed and takes no memory before.
const MAX_PENDING_BYTES: usize = 8 << 20;

/// What a reader gets.
#[derive(Clone, Debug)]
pub enum Delivery {
    /// The profile so far, for a new profile of this session. What came before, if anything, is to be forgotten.
    Begin {
        /// The session, as it was at its beginning.
        info: Arc<SessionInfo>,
        /// Everything up to now.
        snapshot: Arc<Update>,
    },
    /// What came since.
    Update(Arc<Update>),
    /// There will be nothing more: why the session has ended, or `None` for a reader who wanted no updates.
    End(Option<SessionEnd>),
}

/// One reader.
struct Reader {
    sender: Sender<Delivery>,
    /// Whether it wants updates.
    follow: bool,
    /// Whether the next thing that it needs is a snapshot.
    needs_snapshot: bool,
    pending: Option<Arc<Update>>,
    /// It is to be told that there is nothing more.
    end: Option<Option<SessionEnd>>,
}

impl Reader {
    fn has_something(&self) -> bool {
        self.needs_snapshot || self.pending.is_some() || self.end.is_some()
    }

    /// Whether its channel has room, or it has gone: what it has left in its channel when it went stays there, so a full
    /// channel alone does not say that there is somebody.
    fn is_ready(&self) -> bool {
        let mut select = Select::new();
        select.send(&self.sender);
        select.try_ready().is_ok()
    }

    fn offer(&mut self, update: &Arc<Update>) {
        if self.needs_snapshot || !self.follow {
            return;
        }
        let fits = match &mut self.pending {
            None => {
                self.pending = Some(Arc::clone(update));
                true
            }
            // A copy is made only of an update that others still hold.
            Some(pending) => {
                let merged = Arc::make_mut(pending);
                merged.merge(update).is_ok() && merged.approximate_bytes() <= MAX_PENDING_BYTES
            }
        };
        if !fits {
            self.needs_snapshot = true;
            self.pending = None;
        }
    }
}

/// All readers of a session.
#[derive(Default)]
pub struct Readers {
    readers: Vec<Reader>,
}

impl Readers {
    /// A new reader, and where it gets its deliveries. `end` is why the session has ended, if it has.
    pub fn add(&mut self, follow: bool, end: Option<&SessionEnd>) -> Receiver<Delivery> {
        let (sender, receiver) = bounded(1);
        let end = match (end, follow) {
            (Some(end), _) => Some(Some(end.clone())),
            (None, false) => Some(None),
            (None, true) => None,
        };
        self.readers.push(Reader { sender, follow, needs_snapshot: true, pending: None, end });
        receiver
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.readers.len()
    }

    /// Gives an update to all, or keeps it for those that are not ready.
    pub fn offer(&mut self, update: &Arc<Update>) {
        self.readers.iter_mut().for_each(|reader| reader.offer(update));
    }

    /// Tells all that there will be nothing more.
    pub fn end(&mut self, end: &SessionEnd) {
        for reader in &mut self.readers {
            reader.end.get_or_insert_with(|| Some(end.clone()));
        }
    }

    /// Adds the readers to a selection that something waits for: it ends when one becomes ready.
    pub fn select<'a>(&'a self, select: &mut Select<'a>) {
        for reader in self.readers.iter().filter(|reader| reader.has_something()) {
            select.send(&reader.sender);
        }
    }

    /// Delivers what there is to those that are ready. `profile` holds every update offered so far.
    pub fn deliver(&mut self, info: &Arc<SessionInfo>, profile: &Profile) {
        // Those who come at the same moment share a snapshot.
        let mut snapshot: Option<Arc<Update>> = None;
        self.readers.retain_mut(|reader| {
            while reader.has_something() && reader.is_ready() {
                let delivery = if reader.needs_snapshot {
                    let snapshot = snapshot.get_or_insert_with(|| Arc::new(profile.snapshot()));
                    reader.needs_snapshot = false;
                    Delivery::Begin { info: Arc::clone(info), snapshot: Arc::clone(snapshot) }
                } else if let Some(update) = reader.pending.take() {
                    Delivery::Update(update)
                } else {
                    Delivery::End(reader.end.take().flatten())
                };
                let last = matches!(delivery, Delivery::End(_));
                match reader.sender.try_send(delivery) {
                    Ok(()) if !last => {}
                    // This thread alone sends, so there is room still: a reader who is ready and takes nothing has gone.
                    Ok(()) | Err(TrySendError::Disconnected(_) | TrySendError::Full(_)) => return false,
                }
            }
            true
        });
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic)]
mod tests {
    use super::*;
    use ccsd_profile::{
        ContextId, CostCentre, Image, Limits, LineId, Metric, Process, ProcessId, Thread, ThreadId, Unit,
    };

    fn info() -> SessionInfo {
        let metric = Metric { name: "cpu-clock".to_owned(), unit: Unit::Nanoseconds };
        SessionInfo { metrics: vec![metric], ..SessionInfo::default() }
    }

    /// A collector, the session's copy of its profile, and a function and a thread to charge.
    struct Fixture {
        collector: Profile,
        replica: Profile,
        info: Arc<SessionInfo>,
        readers: Readers,
        thread: ThreadId,
        functions: u32,
    }

    impl Fixture {
        fn new() -> Fixture {
            let mut collector = Profile::new(info(), Limits::default());
            let process = Process { pid: 1, start_time: 1, exec_generation: 0, parent: None, name: "demo".to_owned() };
            let process: ProcessId = collector.add_process(process);
            let thread = collector.add_thread(Thread { process, tid: 1, name: "demo".to_owned() });
            let replica = Profile::new(info(), Limits::default());
            Fixture { collector, replica, info: Arc::new(info()), readers: Readers::default(), thread, functions: 0 }
        }

        /// An interval in which a new function is charged, with a name of so many bytes.
        fn interval(&mut self, name_bytes: usize) {
            self.functions += 1;
            let image = self.collector.add_image(Image { name: "demo".to_owned(), build_id: Vec::new() });
            let name = format!("{:0name_bytes$}", self.functions);
            let function = self.collector.add_cost_centre(CostCentre {
                image,
                linkage_name: Some(name),
                display_name: None,
                start: None,
                file: None,
                line: 0,
            });
            let context = self.collector.contexts_mut().push(ContextId::ROOT, function);
            self.collector.charge(self.thread, context, LineId::UNKNOWN, &[7]);
            self.collector.accounting_mut().received += 1;
            let update = Arc::new(self.collector.take_update());
            self.replica.apply(&update).unwrap();
            self.readers.offer(&update);
            self.deliver();
        }

        fn deliver(&mut self) {
            self.readers.deliver(&self.info, &self.replica);
        }
    }

    /// Takes what is there, as a client does. How many deliveries that were, and whether it was the end.
    fn take(fixture: &mut Fixture, from: &Receiver<Delivery>, profile: &mut Profile) -> (usize, usize, bool) {
        let (mut deliveries, mut beginnings) = (0, 0);
        while let Ok(delivery) = from.try_recv() {
            deliveries += 1;
            match delivery {
                Delivery::Begin { info, snapshot } => {
                    beginnings += 1;
                    *profile = Profile::new((*info).clone(), Limits::reading());
                    profile.apply(&snapshot).unwrap();
                }
                Delivery::Update(update) => profile.apply(&update).unwrap(),
                Delivery::End(_) => return (deliveries, beginnings, true),
            }
            fixture.deliver();
        }
        (deliveries, beginnings, false)
    }

    #[test]
    fn slow_and_late_readers_end_with_the_same_profile() {
        let mut fixture = Fixture::new();
        let [mut quick, mut slow, mut late] = [(); 3].map(|()| Profile::new(info(), Limits::default()));
        let quick_end = fixture.readers.add(true, None);
        let slow_end = fixture.readers.add(true, None);
        let mut late_end = None;
        fixture.deliver();
        let mut quick_got = 0;
        for i in 0..20 {
            fixture.interval(10);
            if i == 11 {
                late_end = Some(fixture.readers.add(true, None));
            }
            quick_got += take(&mut fixture, &quick_end, &mut quick).0;
        }
        fixture.readers.end(&SessionEnd::Target);
        fixture.deliver();
        quick_got += take(&mut fixture, &quick_end, &mut quick).0;
        let (slow_got, beginnings, ended) = take(&mut fixture, &slow_end, &mut slow);
        assert!(ended);
        // The snapshot that waited, everything since in one, and the end.
        assert_eq!((slow_got, beginnings), (3, 1));
        assert_eq!(quick_got, 22);
        assert!(take(&mut fixture, &late_end.unwrap(), &mut late).2);
        assert_eq!(fixture.readers.count(), 0);
        for profile in [&quick, &slow, &late] {
            assert_eq!(profile.canonical(), fixture.collector.canonical());
            assert_eq!(profile.accounting(), fixture.collector.accounting());
        }
    }

    #[test]
    fn a_reader_who_misses_too_much_starts_anew() {
        let mut fixture = Fixture::new();
        let mut profile = Profile::new(info(), Limits::default());
        let end = fixture.readers.add(true, None);
        fixture.deliver();
        // Each brings a name of 60,000 bytes.
        for _ in 0..2 * MAX_PENDING_BYTES / 60_000 {
            fixture.interval(60_000);
            let reader = &fixture.readers.readers[0];
            assert!(reader.pending.as_ref().is_none_or(|update| update.approximate_bytes() <= MAX_PENDING_BYTES));
        }
        let (got, beginnings, _) = take(&mut fixture, &end, &mut profile);
        assert_eq!((got, beginnings), (2, 2));
        fixture.interval(10);
        take(&mut fixture, &end, &mut profile);
        assert_eq!(profile.canonical(), fixture.collector.canonical());
    }

    #[test]
    fn who_wants_no_updates_gets_one_profile_and_its_end() {
        let mut fixture = Fixture::new();
        fixture.interval(1);
        let end = fixture.readers.add(false, None);
        fixture.interval(1);
        fixture.interval(1);
        let mut profile = Profile::new(info(), Limits::default());
        assert_eq!(take(&mut fixture, &end, &mut profile), (2, 1, true));
        assert_eq!(profile.accounting().received, 2);
        // And who has gone is forgotten, with or without something left in the channel.
        drop(fixture.readers.add(true, None));
        fixture.deliver();
        assert_eq!(fixture.readers.count(), 0);
        let end = fixture.readers.add(true, None);
        fixture.deliver();
        fixture.interval(1);
        assert_eq!((fixture.readers.count(), end.len()), (1, 1));
        drop(end);
        fixture.deliver();
        assert_eq!(fixture.readers.count(), 0);
    }
}
