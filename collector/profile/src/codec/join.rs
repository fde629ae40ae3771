//! Joins generations of contexts while a stream is coarsened, so that it has each path once.

use hashbrown::HashMap;

use crate::ids::{ContextId, RouteId};
use crate::routes::NewRoute;
use crate::squares::squared_metrics;
use crate::stream::sort_charges;
use crate::update::{DefinitionCounts, NewContext, Update};

const FIRST: u32 = DefinitionCounts::FRESH.contexts;

#[derive(Debug)]
pub(super) struct GenerationJoin {
    /// Contexts of the new stream's generation by parent and function, from number 2 on.
    known: HashMap<(u32, u32), u32>,
    /// More, and twice as many as the old stream's generation has, are a new generation.
    most: usize,
    /// Contexts of the old stream's generation, from number 2 on.
    generation: Vec<NewContext>,
    /// What they are in the new one, from number 0 on.
    numbers: Vec<u32>,
    known_routes: HashMap<NewRoute, u32>,
    routes: Vec<NewRoute>,
    route_numbers: Vec<u32>,
    metrics: usize,
}

impl GenerationJoin {
    /// Of updates with so many metrics. About `most` contexts are remembered.
    pub(super) fn new(metrics: usize, most: usize) -> Self {
        let numbers = (0..FIRST).collect();
        Self {
            known: HashMap::new(),
            most,
            generation: Vec::new(),
            numbers,
            known_routes: HashMap::new(),
            routes: Vec::new(),
            route_numbers: vec![0],
            metrics,
        }
    }

    pub(super) fn translate(&mut self, update: &mut Update) {
        if update.begins_generation(self.numbers.len() as u32) {
            self.forget_generation();
        }
        let (mut contexts, mut routes) = (Vec::new(), Vec::new());
        (update.base.contexts, update.base.routes) = (self.count(), self.count_routes());
        // A large generation may grow to twice its size, or every update would begin another.
        let is_full = |known: usize, now: usize| known >= self.most.max(2 * now);
        let is_full =
            is_full(self.known.len(), self.generation.len()) || is_full(self.known_routes.len(), self.routes.len());
        if is_full && !self.known.is_empty() {
            (self.known, self.known_routes) = (HashMap::new(), HashMap::new());
            (update.base.contexts, update.base.routes) = (FIRST, DefinitionCounts::FRESH.routes);
            let (of_generation, routes_of_generation) = self.forget_generation();
            for context in of_generation {
                self.add(context, &mut contexts);
            }
            for route in routes_of_generation {
                self.add_route(route, &mut routes);
            }
        }
        for context in std::mem::take(&mut update.contexts) {
            self.add(context, &mut contexts);
        }
        for route in std::mem::take(&mut update.routes) {
            self.add_route(route, &mut routes);
        }
        (update.contexts, update.routes) = (contexts, routes);
        for charge in &mut update.charges {
            charge.context = self.number(charge.context);
            charge.route = self.route(charge.route);
        }
        if !update.charges.is_sorted() {
            let (weights, squares) = (&mut update.weights, &mut update.squares);
            let squared = squared_metrics(self.metrics);
            sort_charges(&mut update.charges, (weights, self.metrics), (squares, squared));
        }
    }

    /// What an update has to define after `last`, so that those of the old stream can follow.
    pub(super) fn generation_after(self, last: &Update) -> Update {
        Update {
            from_ns: last.from_ns,
            to_ns: last.to_ns,
            base: DefinitionCounts { contexts: FIRST, routes: DefinitionCounts::FRESH.routes, ..last.end() },
            contexts: self.generation,
            routes: self.routes,
            accounting: last.accounting.clone(),
            ..Update::default()
        }
    }

    fn count(&self) -> u32 {
        FIRST.saturating_add(u32::try_from(self.known.len()).unwrap_or(u32::MAX))
    }

    fn count_routes(&self) -> u32 {
        DefinitionCounts::FRESH.routes.saturating_add(u32::try_from(self.known_routes.len()).unwrap_or(u32::MAX))
    }

    fn forget_generation(&mut self) -> (Vec<NewContext>, Vec<NewRoute>) {
        self.numbers.truncate(FIRST as usize);
        self.route_numbers.truncate(DefinitionCounts::FRESH.routes as usize);
        (std::mem::take(&mut self.generation), std::mem::take(&mut self.routes))
    }

    fn route(&self, id: RouteId) -> RouteId {
        let Some(&number) = self.route_numbers.get(id.index()) else { return RouteId::EMPTY.cut() };
        let there = RouteId::new(number);
        if id.is_cut() { there.cut() } else { there }
    }

    /// Translates the next route, adding it if the new stream lacks it.
    fn add_route(&mut self, route: NewRoute, new: &mut Vec<NewRoute>) {
        let next = self.count_routes();
        let there = NewRoute { parent: self.route(route.parent), ..route };
        let number = *self.known_routes.entry(there).or_insert(next);
        if number == next {
            new.push(there);
        }
        self.route_numbers.push(number);
        self.routes.push(route);
    }

    fn number(&self, id: ContextId) -> ContextId {
        ContextId(self.numbers.get(id.index()).copied().unwrap_or(ContextId::ELIDED.0))
    }

    /// Translates the next context, adding it if the new stream lacks its path.
    fn add(&mut self, context: NewContext, new: &mut Vec<NewContext>) {
        let next = self.count();
        let there = NewContext { parent: self.number(context.parent), function: context.function };
        let number = *self.known.entry((there.parent.0, there.function.0)).or_insert(next);
        if number == next {
            new.push(there);
        }
        self.numbers.push(number);
        self.generation.push(context);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        CostCentre, CostCentreId, Image, LineId, Metric, Process, Profile, ProfileLimits, SessionInfo, Thread, Unit,
    };

    fn profile() -> Profile {
        let metrics = vec![Metric { name: "cpu-clock".to_owned(), unit: Unit::Nanoseconds }];
        Profile::new(SessionInfo { metrics, ..SessionInfo::default() }, ProfileLimits::default())
    }

    /// Whatever room there is for contexts, what is read is the same.
    #[test]
    fn streams_say_the_same() {
        let mut whole = profile();
        let mut updates = Vec::new();
        let mut collector = profile();
        let name = || "demo".to_owned();
        let process = collector.add_process(Process {
            pid: 1,
            start_time: 1,
            exec_generation: 0,
            parent: None,
            membership: None,
            name: name(),
        });
        let thread = collector.add_thread(Thread { process, tid: 1, name: name() });
        let image = collector.add_image(Image { name: name(), build_id: Vec::new() });
        for number in 0..60u32 {
            for stack in [[number % 3, 4, number % 5], [number % 7, number % 2, 4]] {
                let context = stack.into_iter().fold(ContextId::ROOT, |context, function| {
                    let function = collector.add_cost_centre(CostCentre {
                        image,
                        linkage_name: Some(format!("f{function}")),
                        display_name: None,
                        start: None,
                        file: None,
                        line: 0,
                        local: false,
                    });
                    collector.contexts_mut().push(context, function)
                });
                collector.charge(thread, context, LineId::UNKNOWN, &[u64::from(number + 1)]);
            }
            let update = collector.take_update();
            whole.apply(&update).unwrap();
            updates.push(update);
            if number % 4 == 1 {
                collector.begin_generation();
            }
        }
        for most in [0, 1, 5, 20, 1_000] {
            let mut join = GenerationJoin::new(1, most);
            let (mut read, mut contexts) = (profile(), 0);
            let (early, late) = updates.split_at(38);
            let mut last = Update::default();
            for update in early {
                let mut update = update.clone();
                join.translate(&mut update);
                contexts += update.contexts.len();
                read.apply(&update).unwrap();
                last = update;
            }
            read.apply(&join.generation_after(&last)).unwrap();
            late.iter().for_each(|update| read.apply(update).unwrap());
            assert_eq!(read.canonical(), whole.canonical(), "{most}");
            let all: usize = early.iter().map(|update| update.contexts.len()).sum();
            assert_eq!(most == 1_000, contexts <= read.contexts().len(), "{contexts} of {all} for {most}");
        }
    }

    /// A generation with more routes than `most` is not sent anew with every update.
    #[test]
    fn a_large_generation_is_sent_few_times() {
        const UPDATES: u32 = 400;
        let (mut whole, mut read, mut collector) = (profile(), profile(), profile());
        let name = || "demo".to_owned();
        let process = collector.add_process(Process {
            pid: 1,
            start_time: 1,
            exec_generation: 0,
            parent: None,
            membership: None,
            name: name(),
        });
        let thread = collector.add_thread(Thread { process, tid: 1, name: name() });
        let context = collector.contexts_mut().push(ContextId::ROOT, CostCentreId::ROOT);
        let mut join = GenerationJoin::new(1, 4);
        let mut sent = 0;
        for number in 1..=UPDATES {
            let line = collector.add_line("demo.c", number);
            let route = collector.push_site(RouteId::EMPTY, CostCentreId::ROOT, line);
            collector.charge_route(thread, context, line, route, &[1]);
            let mut update = collector.take_update();
            whole.apply(&update).unwrap();
            join.translate(&mut update);
            sent += update.routes.len();
            read.apply(&update).unwrap();
        }
        assert_eq!(read.canonical(), whole.canonical());
        assert!(sent < 4 * UPDATES as usize, "{sent}");
    }
}
