//! Small profiles for tests.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(dead_code, reason = "every test binary uses a part of this")]

pub mod raw;
pub mod readers;

use ccsd_profile::*;

pub fn session() -> SessionInfo {
    SessionInfo {
        target: "demo".into(),
        command: vec!["./demo".into(), "-x".into()],
        pids: vec![7],
        event: "cpu-clock:u".into(),
        rate_hz: 999,
        host: "here".into(),
        started_unix_ns: 1_000,
        metrics: vec![Metric { name: "cpu-clock".into(), unit: Unit::Nanoseconds }],
        notes: vec!["no PMU: sampling by CPU clock".into()],
        version: "0".into(),
    }
}

pub struct Maker {
    pub profile: Profile,
    pub image: ImageId,
    pub process: ProcessId,
}

impl Maker {
    pub fn new() -> Self {
        Self::with(session(), ProfileLimits::default())
    }

    pub fn with(session: SessionInfo, limits: ProfileLimits) -> Self {
        let mut profile = Profile::new(session, limits);
        let image = profile.add_image(Image { name: "/usr/bin/demo".into(), build_id: vec![1, 2, 3] });
        let process = profile.add_process(Process::new(7, 100, "demo"));
        Self { profile, image, process }
    }

    pub fn function(&mut self, name: &str) -> CostCentreId {
        self.profile.add_cost_centre(CostCentre {
            start: Some(0x1000),
            file: Some("demo.c".into()),
            line: 3,
            ..CostCentre::named(self.image, name)
        })
    }

    pub fn thread(&mut self, tid: u32) -> ThreadId {
        self.profile.add_thread(Thread { process: self.process, tid, name: format!("worker {tid}") })
    }

    /// Charges a stack, root first, names separated by spaces.
    pub fn charge(&mut self, stack: &str, weight: u64) -> ContextId {
        self.charge_at(7, stack, LineId::UNKNOWN, weight)
    }

    pub fn charge_at(&mut self, tid: u32, stack: &str, line: LineId, weight: u64) -> ContextId {
        let thread = self.thread(tid);
        let mut context = ContextId::ROOT;
        for name in stack.split_whitespace() {
            let function = self.function(name);
            context = self.profile.contexts_mut().push(context, function);
        }
        self.profile.charge(thread, context, line, &[weight]);
        self.profile.accounting_mut().received += 1;
        context
    }

    /// Charges a stack, root first, of functions and the lines that they are at; 0 is a line that is not known.
    pub fn charge_sites(&mut self, tid: u32, stack: &[(&str, u32)], weight: u64) {
        let thread = self.thread(tid);
        let (mut context, mut route, mut line) = (ContextId::ROOT, RouteId::EMPTY, LineId::UNKNOWN);
        let mut caller = None;
        for &(name, number) in stack {
            let function = self.function(name);
            if let Some(caller) = caller {
                route = self.profile.push_site(route, caller, line);
            }
            context = self.profile.contexts_mut().push(context, function);
            line = if number == 0 { LineId::UNKNOWN } else { self.profile.add_line("demo.c", number) };
            caller = Some(function);
        }
        self.profile.charge_route(thread, context, line, route, &[weight]);
        self.profile.accounting_mut().received += 1;
    }

    pub fn find(&self, name: &str) -> CostCentreId {
        let position = self.profile.cost_centres().iter().position(|f| f.linkage_name.as_deref() == Some(name));
        CostCentreId::new(u32::try_from(position.unwrap()).unwrap())
    }
}

pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    pub fn fraction(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }

    pub fn chance(&mut self, p: f64) -> bool {
        self.fraction() < p
    }

    pub fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }
}

/// Stacks of six functions, with weights.
pub fn samples() -> impl proptest::strategy::Strategy<Value = Vec<(Vec<u32>, u64)>> {
    proptest::collection::vec((proptest::collection::vec(0..6u32, 1..12), 1..1000u64), 1..40)
}

pub fn made(samples: &[(Vec<u32>, u64)]) -> Maker {
    let mut maker = Maker::new();
    for (stack, weight) in samples {
        let names: Vec<String> = stack.iter().map(|function| format!("f{function}")).collect();
        maker.charge(&names.join(" "), *weight);
    }
    maker
}
