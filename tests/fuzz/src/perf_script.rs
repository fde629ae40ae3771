//! The text of `perf script`.

use ccsd_profile::SessionInfo;
use ccsd_profile::import::perf_script;
use ccsd_profile::view::{FlatView, Selection};

pub fn run(data: &[u8]) {
    let mut updates = 0;
    let read = perf_script(data, SessionInfo::default(), None, |_, update| {
        updates += usize::from(update.is_some());
        Ok(())
    });
    if let Ok((profile, _)) = read {
        assert!(updates > 0);
        let flat = FlatView::new(&profile, &Selection::all());
        assert_eq!(flat.rows.iter().map(|row| row.self_weight).fold(0, u64::saturating_add), flat.total.weight);
    }
}
