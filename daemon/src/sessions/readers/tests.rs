//! Readers without threads, so that each step can be checked.
#![allow(clippy::unwrap_used, clippy::panic)]

use super::*;
use crate::ledger::{Ledger, LedgerPrincipal, Resource, Shares};
use ccsd_profile::{
    ContextId, CostCentre, Image, LineId, Metric, Process, ProcessId, ProfileLimits, Thread, ThreadId, Unit,
};

const OWNER: LedgerPrincipal = LedgerPrincipal::User(7);

fn info() -> SessionInfo {
    let metric = Metric { name: "cpu-clock".to_owned(), unit: Unit::Nanoseconds };
    SessionInfo { metrics: vec![metric], ..SessionInfo::default() }
}

impl Snapshot {
    fn apply(&self, profile: &mut Profile) {
        profile.apply(&self.whole).unwrap();
        self.generation.iter().for_each(|generation| profile.apply(generation).unwrap());
    }
}

/// A collector's profile, the session's copy, and a function and a thread to charge.
struct Fixture {
    collector: Profile,
    replica: Profile,
    readers: Readers,
    ledger: Ledger,
    thread: ThreadId,
    functions: u32,
}

impl Fixture {
    fn new() -> Fixture {
        let mut collector = Profile::new(info(), ProfileLimits::default());
        let process = Process::new(1, 1, "demo");
        let process: ProcessId = collector.add_process(process);
        let thread = collector.add_thread(Thread { process, tid: 1, name: "demo".to_owned() });
        let replica = Profile::new(info(), ProfileLimits::default());
        let ledger = Ledger::new(Shares::new(1 << 20, 1024, 1 << 20));
        let charges = [OWNER, LedgerPrincipal::Own].map(|who| ledger.charge(who, Resource::Bytes, 0)).into();
        let readers = Readers::new(Arc::new(info()), charges);
        Fixture { collector, replica, readers, ledger, thread, functions: 0 }
    }

    fn interval(&mut self, name_bytes: usize) {
        self.functions += 1;
        let image = self.collector.add_image(Image { name: "demo".to_owned(), build_id: Vec::new() });
        let name = format!("{:0name_bytes$}", self.functions);
        let function = self.collector.add_cost_centre(CostCentre::named(image, name));
        let context = self.collector.contexts_mut().push(ContextId::ROOT, function);
        self.collector.charge(self.thread, context, LineId::UNKNOWN, &[7]);
        self.collector.accounting_mut().received += 1;
        let update = Arc::new(self.collector.take_update());
        self.replica.apply(&update).unwrap();
        self.readers.offer(&update, self.replica.bytes());
        self.readers.serve(&self.replica);
    }

    fn end(&self) {
        self.readers.end(&SessionEnd::Target);
    }
}

struct TestClient {
    reader: StreamReader,
    profile: Profile,
    got: [usize; 3],
}

impl TestClient {
    fn new(fixture: &Fixture, follow: bool) -> TestClient {
        let profile = Profile::new(info(), ProfileLimits::default());
        TestClient { reader: fixture.readers.add(follow, false), profile, got: [0; 3] }
    }

    fn take_one(&mut self, fixture: &Fixture) -> bool {
        let shared = Arc::clone(&self.reader.shared);
        let mut found = self.reader.look(&mut shared.state());
        if matches!(found, Fetched::Nothing) {
            fixture.readers.serve(&fixture.replica);
            found = self.reader.look(&mut shared.state());
        }
        match self.reader.delivery(found) {
            Some(Delivery::Begin { info, snapshot }) => {
                self.got[0] += 1;
                self.profile = Profile::new((*info).clone(), ProfileLimits::reading());
                snapshot.apply(&mut self.profile);
            }
            Some(Delivery::Update(update)) => {
                self.got[1] += 1;
                self.profile.apply(&update).unwrap();
            }
            Some(Delivery::End(_)) => self.got[2] += 1,
            None => return false,
        }
        true
    }

    fn take(&mut self, fixture: &Fixture) -> [usize; 3] {
        while self.take_one(fixture) {}
        std::mem::take(&mut self.got)
    }

    fn assert_has_all(&self, fixture: &Fixture) {
        assert_eq!(self.profile.canonical(), fixture.collector.canonical());
        assert_eq!(self.profile.accounting(), fixture.collector.accounting());
    }
}

#[test]
fn slow_and_late_readers_end_with_the_same_profile() {
    let mut fixture = Fixture::new();
    let (mut quick, mut slow) = (TestClient::new(&fixture, true), TestClient::new(&fixture, true));
    let mut late = None;
    assert!(slow.take_one(&fixture));
    for i in 0..20 {
        fixture.interval(10);
        if i == 11 {
            late = Some(TestClient::new(&fixture, true));
        }
        assert_eq!(quick.take(&fixture), if i == 0 { [1, 0, 0] } else { [0, 1, 0] });
    }
    fixture.end();
    assert_eq!(quick.take(&fixture), [0, 0, 1]);
    // The snapshot, all later updates merged, and the end.
    assert_eq!(slow.take(&fixture), [1, 1, 1]);
    let mut late = late.unwrap();
    assert_eq!(late.take(&fixture), [1, 0, 1]);
    for client in [&quick, &slow, &late] {
        client.assert_has_all(&fixture);
    }
    drop((quick, slow, late));
    assert_eq!((fixture.readers.count(), fixture.readers.held_bytes()), (0, 0));
}

fn asks(reader: &mut StreamReader, fixture: &Fixture) -> bool {
    let shared = Arc::clone(&reader.shared);
    assert!(matches!(reader.look(&mut shared.state()), Fetched::Nothing));
    fixture.readers.serve(&fixture.replica);
    matches!(shared.state().places[&reader.key], ReaderPosition::Begins(..))
}

#[test]
fn readers_are_charged_after_their_session_is_forgotten() {
    let mut fixture = Fixture::new();
    (0..3).for_each(|_| fixture.interval(50_000));
    let mut reader = fixture.readers.add(true, false);
    assert!(asks(&mut reader, &fixture));
    let held = reader.next();
    let Fixture { readers, ledger, .. } = fixture;
    drop(readers);
    assert!(ledger.taken(OWNER, Resource::Bytes) > 150_000);
    drop(held);
    assert!(reader.next().is_none());
    assert_eq!(ledger.taken(OWNER, Resource::Bytes), 0);
    // A reader that goes in the middle of its data gives it back, too.
    let mut fixture = Fixture::new();
    fixture.interval(50_000);
    let mut reader = fixture.readers.add(true, false);
    assert!(asks(&mut reader, &fixture));
    drop(reader.next());
    fixture.interval(50_000);
    assert!(fixture.ledger.taken(OWNER, Resource::Bytes) > 50_000);
    drop(reader);
    assert_eq!(fixture.ledger.taken(OWNER, Resource::Bytes), 0);
}

#[test]
fn readers_that_hold_all_that_a_user_may_have_get_no_more() {
    let mut fixture = Fixture::new();
    (0..10).for_each(|_| fixture.interval(50_000));
    let [mut slow, mut second] = [(); 2].map(|()| fixture.readers.add(true, false));
    assert!(asks(&mut slow, &fixture));
    let held = slow.next();
    // The log overflows, so that the snapshot is too old for others, and another one is more than a MiB.
    (0..90).for_each(|_| fixture.interval(50_000));
    assert!(!asks(&mut second, &fixture));
    let mut of_root = fixture.readers.add(true, true);
    assert!(asks(&mut of_root, &fixture));
    drop((of_root, second));
    let before = fixture.ledger.taken(OWNER, Resource::Bytes);
    let mut of_root = fixture.readers.add(true, true);
    assert!(asks(&mut of_root, &fixture));
    assert_eq!(fixture.ledger.taken(OWNER, Resource::Bytes), before);
    assert!(fixture.ledger.taken(LedgerPrincipal::Own, Resource::Bytes) > 1 << 20);
    drop(of_root);
    assert_eq!(fixture.ledger.taken(LedgerPrincipal::Own, Resource::Bytes), 0);
    let mut third = fixture.readers.add(true, false);
    assert!(!asks(&mut third, &fixture));
    drop((held, slow));
    // Its going wakes the session, which serves who waits.
    assert!(fixture.readers.woken().try_recv().is_ok());
    assert!(fixture.readers.waits_for_memory());
    fixture.readers.serve(&fixture.replica);
    assert!(!fixture.readers.waits_for_memory());
    assert!(third.next().is_some());
}

#[test]
fn nothing_is_kept_for_those_who_keep_up() {
    let mut fixture = Fixture::new();
    fixture.interval(100);
    assert_eq!(fixture.readers.held_bytes(), 0);
    let mut clients: Vec<TestClient> = (0..10).map(|_| TestClient::new(&fixture, true)).collect();
    for client in &mut clients {
        client.take(&fixture);
    }
    for _ in 0..10 {
        fixture.interval(100);
        let held = fixture.readers.held_bytes();
        assert!(held > 0);
        for client in &mut clients {
            assert_eq!(client.take(&fixture), [0, 1, 0]);
        }
        assert_eq!(fixture.readers.held_bytes(), 0);
    }
    // The log is shared by all readers.
    let held: Vec<usize> = [1, 10]
        .map(|stopped| {
            (0..5).for_each(|_| fixture.interval(100));
            clients.iter_mut().skip(stopped).for_each(|client| assert_eq!(client.take(&fixture), [0, 1, 0]));
            let held = fixture.readers.held_bytes();
            clients.iter_mut().take(stopped).for_each(|client| assert_eq!(client.take(&fixture), [0, 1, 0]));
            held
        })
        .into();
    assert!(held[0] > 0 && held[0].abs_diff(held[1]) < held[0] / 10, "{held:?}");
}

#[test]
fn readers_who_miss_too_much_start_anew() {
    let mut fixture = Fixture::new();
    let mut clients: Vec<TestClient> = (0..3).map(|_| TestClient::new(&fixture, true)).collect();
    assert!(clients.iter_mut().all(|client| client.take_one(&fixture)));
    // Each interval adds a name of 60,000 bytes.
    let most = *LOG_BYTES.end();
    for _ in 0..2 * most / 60_000 {
        fixture.interval(60_000);
        assert!(fixture.readers.held_bytes() <= most);
    }
    for client in &mut clients {
        client.got = [0; 3];
        assert_eq!(client.take(&fixture), [1, 0, 0]);
        client.assert_has_all(&fixture);
    }
    fixture.interval(10);
    for client in &mut clients {
        assert_eq!(client.take(&fixture), [0, 1, 0]);
        client.assert_has_all(&fixture);
    }
}

#[test]
fn readers_go_on_over_generations_of_contexts() {
    let mut fixture = Fixture::new();
    let mut clients: Vec<TestClient> = Vec::new();
    for interval in 0..12 {
        clients.push(TestClient::new(&fixture, true));
        // The same functions in another order: contexts have other numbers in each generation.
        fixture.functions = [0, 3, 1, 2][interval % 4];
        fixture.interval(10);
        if interval % 3 == 2 {
            fixture.collector.begin_generation();
        }
        // Some clients take each update as it comes, others several at once.
        clients.iter_mut().step_by(2).for_each(|client| while client.take_one(&fixture) {});
    }
    fixture.end();
    for client in &mut clients {
        client.take(&fixture);
        assert_eq!(client.profile.canonical(), fixture.replica.canonical());
        assert_eq!(client.profile.accounting().received, 12);
    }
    // One function for each number, each in one context.
    assert_eq!(fixture.replica.contexts().len(), 2 + 4);
}

#[test]
fn a_snapshot_that_somebody_still_has_serves_others_too() {
    let mut fixture = Fixture::new();
    fixture.interval(10);
    let mut first = TestClient::new(&fixture, true);
    let shared = Arc::clone(&fixture.readers.shared);
    assert!(matches!(first.reader.look(&mut shared.state()), Fetched::Nothing));
    fixture.readers.serve(&fixture.replica);
    // A client that takes the snapshot in slowly.
    let Fetched::Snapshot(slowly) = first.reader.look(&mut shared.state()) else { panic!("no snapshot") };
    fixture.interval(10);
    let mut second = TestClient::new(&fixture, true);
    let Fetched::Snapshot(same) = second.reader.look(&mut shared.state()) else { panic!("no snapshot") };
    assert!(Arc::ptr_eq(&slowly, &same));
    same.apply(&mut second.profile);
    assert_eq!(second.take(&fixture), [0, 1, 0]);
    second.assert_has_all(&fixture);
    // A reader of the current state gets the same snapshot.
    let mut once = TestClient::new(&fixture, false);
    assert_eq!(once.take(&fixture), [1, 1, 1]);
    once.assert_has_all(&fixture);
    // Once no reader holds it, the next reader gets a new one.
    drop((slowly, same));
    let mut third = TestClient::new(&fixture, true);
    assert_eq!(third.take(&fixture), [1, 0, 0]);
    third.assert_has_all(&fixture);
}

#[test]
fn a_reader_without_updates_gets_one_profile_and_its_end() {
    let mut fixture = Fixture::new();
    fixture.interval(1);
    let mut client = TestClient::new(&fixture, false);
    assert!(client.take_one(&fixture));
    fixture.interval(1);
    fixture.interval(1);
    assert_eq!(client.take(&fixture), [1, 0, 1]);
    assert_eq!(client.profile.accounting().received, 1);
    drop(client);
    assert_eq!(fixture.readers.count(), 0);
}

#[test]
fn a_session_that_is_forgotten_leaves_its_readers_what_there_is() {
    let mut fixture = Fixture::new();
    let (mut one, mut late) = (TestClient::new(&fixture, true), TestClient::new(&fixture, true));
    assert!(one.take_one(&fixture));
    fixture.interval(1);
    fixture.end();
    let Fixture { readers, collector, .. } = fixture;
    drop(readers);
    // The reader's own thread would block here if more were to come.
    assert!(matches!(one.reader.next(), Some(Delivery::Update(_))));
    assert!(matches!(one.reader.next(), Some(Delivery::End(Some(SessionEnd::Target)))));
    assert!(one.reader.next().is_none());
    assert!(late.reader.next().is_none());
    assert_eq!(collector.accounting().received, 1);
}

#[test]
fn a_reader_s_thread_gets_everything() {
    let mut fixture = Fixture::new();
    let mut reader = fixture.readers.add(true, false);
    let thread = std::thread::spawn(move || {
        let mut profile = Profile::new(info(), ProfileLimits::default());
        loop {
            match reader.next().unwrap() {
                Delivery::Begin { snapshot, .. } => snapshot.apply(&mut profile),
                Delivery::Update(update) => profile.apply(&update).unwrap(),
                Delivery::End(_) => return profile,
            }
        }
    });
    // The reader asks once it has handled its last delivery.
    fixture.readers.woken().recv().unwrap();
    fixture.readers.serve(&fixture.replica);
    (0..200).for_each(|_| fixture.interval(20));
    fixture.end();
    assert_eq!(thread.join().unwrap().canonical(), fixture.collector.canonical());
}
