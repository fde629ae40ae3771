//! The controller over windows that are written out.

use super::*;

const CLEAN: RateWindow = RateWindow {
    elapsed_ns: WINDOW_NS,
    received: 500,
    lost: 0,
    throttled: 0,
    dropped: 0,
    backlog: false,
    own_cpu_ns: 4_000_000,
    reader_cpu_ns: 2_000_000,
};
const BAD: RateWindow = RateWindow { lost: 25, ..CLEAN };
const TERRIBLE: RateWindow = RateWindow { lost: 500, ..CLEAN };
const PATIENCE: usize = (PATIENCE_NS / WINDOW_NS) as usize;

fn rates(pace: &mut RateController, windows: &[RateWindow]) -> Vec<u32> {
    windows
        .iter()
        .map(|window| {
            let change = pace.review(window);
            assert!(change.is_none_or(|change| change.rate_hz == pace.rate_hz()));
            pace.rate_hz()
        })
        .collect()
}

fn until_raised(pace: &mut RateController) -> usize {
    (1..10_000).find(|_| pace.review(&CLEAN).is_some()).unwrap()
}

#[test]
fn without_trouble_nothing_changes() {
    let mut pace = RateController::at(999, true);
    assert_eq!(rates(&mut pace, &[CLEAN; 1_000]), [999; 1_000]);
    // Nine missing are few, and so is one in fifty-one.
    let few = RateWindow { received: 10, lost: 9, ..CLEAN };
    let seldom = RateWindow { received: 5_000, lost: 50, throttled: 30, dropped: 19, ..CLEAN };
    assert_eq!(rates(&mut pace, &[few, few, seldom, seldom, seldom]), [999; 5]);
    assert_eq!(rates(&mut pace, &[BAD, CLEAN, BAD, CLEAN, CLEAN]), [999; 5]);
}

#[test]
fn lasting_losses_halve_the_rate() {
    let mut pace = RateController::at(999, true);
    // The window after a step is not judged: what was read in it was lost before.
    let windows = [BAD; 14];
    let expected = [999, 499, 499, 499, 249, 249, 249, 124, 124, 124, 62, 62, 62, 62];
    assert_eq!(rates(&mut pace, &windows), expected);
    assert_eq!(rates(&mut pace, &[TERRIBLE; 20]), [62; 20]);
    let mut pace = RateController::at(999, true);
    assert_eq!(rates(&mut pace, &[TERRIBLE, TERRIBLE, TERRIBLE]), [499, 499, 249]);
    let mut pace = RateController::at(3, true);
    assert_eq!(rates(&mut pace, &[TERRIBLE; 6]), [1; 6]);
}

#[test]
fn the_reason_is_what_most_are_missing_for() {
    let why = |window: RateWindow| RateController::at(999, true).review(&window).unwrap().why;
    assert_eq!(why(TERRIBLE), "50% of the samples were lost, because ccsd did not come to read them in time");
    assert!(
        why(RateWindow { throttled: 600, ..TERRIBLE }).starts_with("68% of the samples were throttled by the kernel")
    );
    assert!(why(RateWindow { dropped: 600, ..TERRIBLE }).contains("68% of the samples were dropped"));
    let mut pace = RateController::at(999, true);
    let waits = RateWindow { backlog: true, ..CLEAN };
    assert_eq!(pace.review(&waits), None);
    assert_eq!(pace.review(&waits).unwrap().why, "samples wait for ccsd to name them and add them up");
}

#[test]
fn a_fixed_rate_stays() {
    let mut pace = RateController::at(999, false);
    assert!(!pace.is_variable());
    assert_eq!(rates(&mut pace, &[TERRIBLE; 50]), [999; 50]);
}

#[test]
fn the_rate_rises_when_there_is_room_for_long() {
    let mut pace = RateController::at(999, true);
    assert_eq!(rates(&mut pace, &[TERRIBLE, CLEAN, TERRIBLE]), [499, 499, 249]);
    assert_eq!(until_raised(&mut pace), PATIENCE + 1);
    assert_eq!(pace.rate_hz(), 499);
    let busy = RateWindow { reader_cpu_ns: WINDOW_NS / 2, ..CLEAN };
    assert_eq!(rates(&mut pace, &[busy; 100]), [499; 100]);
    let change = pace.review(&CLEAN).unwrap();
    assert_eq!((change.rate_hz, change.why.as_str()), (999, "no samples were missing for 50 s"));
    assert_eq!(rates(&mut pace, &[CLEAN; 1_000]), [999; 1_000]);
}

#[test]
fn trouble_that_comes_back_is_given_more_time() {
    let mut pace = RateController::at(999, true);
    let _ = pace.review(&TERRIBLE);
    let mut waits = Vec::new();
    for _ in 0..8 {
        waits.push(until_raised(&mut pace) - 1);
        assert_eq!(rates(&mut pace, &[CLEAN, TERRIBLE]), [999, 499]);
    }
    assert_eq!(waits, [1, 2, 4, 8, 16, 32, 32, 32].map(|times| times * PATIENCE));
    // After a good while it is news again.
    let _ = until_raised(&mut pace);
    let _ = rates(&mut pace, &[CLEAN; 33 * PATIENCE]);
    let _ = pace.review(&TERRIBLE);
    assert_eq!(until_raised(&mut pace) - 1, PATIENCE);
}

fn budgeted(percent: f64) -> RateController {
    RateController::within(Overhead::percent(percent).unwrap(), 16_000, MOST_HZ, true)
}

#[test]
fn a_budget_affords_a_rate() {
    // 24 us a sample in all.
    let rates = [0.01, 0.1, 0.5, 1.0, 5.0, 25.0].map(|percent| budgeted(percent).rate_hz());
    assert_eq!(rates, [3, 39, 157, 313, 1_767, 4_999]);
    for (percent, rate) in [(0.1, 39.0), (1.0, 313.0)] {
        let spent = rate * 24e-6;
        assert!(spent <= percent / 100.0 && spent * 2f64.sqrt() * 1.1 > percent / 100.0, "{spent}");
    }
    for wrong in [0.0, -1.0, 0.009, 25.1, 100.0, f64::NAN, f64::INFINITY] {
        assert!(Overhead::percent(wrong).is_err(), "{wrong}");
    }
    assert_eq!(Overhead::percent(0.5).unwrap().as_ppm(), 5_000);
    assert_eq!(Overhead::ppm(5_000).unwrap(), Overhead::percent(0.5).unwrap());
    assert!(Overhead::ppm(0).is_err());
}

#[test]
fn a_budget_follows_what_samples_cost() {
    let mut pace = budgeted(1.0);
    assert_eq!(rates(&mut pace, &[CLEAN; 100]), [313; 100]);
    // Four windows in which names are read are outliers.
    let names = RateWindow { own_cpu_ns: 400_000_000, ..CLEAN };
    assert_eq!(rates(&mut pace, &[names; 4]), [313; 4]);
    assert_eq!(rates(&mut pace, &[CLEAN; 20]), [313; 20]);
    // 44 us, of which 10,000 us a second afford 166.
    let dear = RateWindow { own_cpu_ns: 500 * 44_000, ..CLEAN };
    let steps = rates(&mut pace, &[dear; 20]);
    assert_eq!((steps[3], steps[19], pace.cost()), (313, 157, SampleCost { target_ns: 16_000, own_ns: 44_000 }));
    // And back, when there is enough for the next rate and a fifth.
    let cheap = RateWindow { own_cpu_ns: 500 * 8_000, ..CLEAN };
    assert_eq!(rates(&mut pace, &[cheap; 30])[29], 313);
    assert!(rates(&mut pace, &[RateWindow { own_cpu_ns: 500 * 5_500, ..CLEAN }; 50]).iter().all(|&rate| rate == 313));
    assert_eq!(rates(&mut pace, &[RateWindow { own_cpu_ns: 500 * 1_000, ..CLEAN }; 50])[49], 441);
    // Windows with few samples are added up.
    let idle = RateWindow { received: 10, own_cpu_ns: 10 * 44_000, ..CLEAN };
    assert_eq!(rates(&mut pace, &[idle; 60])[59], 157);
}

#[test]
fn a_target_that_is_mostly_idle_keeps_its_rate() {
    let mut pace = budgeted(1.0);
    let mut lowest = u32::MAX;
    // One that works a twentieth of the time, and 6 ms a second of looks, however many samples there are.
    for _ in 0..2_000 {
        let received = u64::from(pace.rate_hz()) / 40;
        let _ = pace.review(&RateWindow { received, own_cpu_ns: 3_000_000 + received * 8_000, ..CLEAN });
        lowest = lowest.min(pace.rate_hz());
    }
    // It takes a while to tell the one from the other.
    assert!(lowest < 313, "{lowest}");
    assert_eq!(pace.rate_hz(), 313);
}

#[test]
fn trouble_and_a_budget_go_together() {
    let mut pace = budgeted(1.0);
    assert_eq!(rates(&mut pace, &[TERRIBLE, CLEAN, TERRIBLE]), [156, 156, 78]);
    assert_eq!(until_raised(&mut pace), PATIENCE + 1);
    assert_eq!(pace.rate_hz(), 156);
    pace.hold();
    assert!(!pace.is_variable());
    assert_eq!(rates(&mut pace, &[TERRIBLE; 10]), [156; 10]);
}

#[test]
fn a_refused_change_is_tried_again() {
    let mut pace = RateController::at(999, true);
    let mut waits = Vec::new();
    let mut told = 0;
    for _ in 0..9 {
        let windows = (1..10_000).find(|_| pace.review(&TERRIBLE).is_some()).unwrap();
        waits.push((windows - 1) as u64 * WINDOW_NS / PAUSE_NS);
        told += u32::from(pace.refused());
        assert_eq!((pace.rate_hz(), pace.is_variable()), (999, true));
    }
    assert_eq!((waits, told), (vec![0, 1, 2, 4, 8, 16, 32, 64, 64], 1));
    assert_eq!(rates(&mut pace, &[CLEAN; 1_000]), [999; 1_000]);
    // The halvings that were not made are not made up for.
    assert_eq!(pace.review(&TERRIBLE).unwrap().rate_hz, 499);
    pace.accepted();
    // Raising it may be refused as well; then it is time to raise it again in a while, and not at once.
    assert_eq!((until_raised(&mut pace), pace.refused(), pace.rate_hz()), (PATIENCE + 1, true, 499));
    assert_eq!(until_raised(&mut pace), (PAUSE_NS / WINDOW_NS) as usize + PATIENCE);
    pace.accepted();
    assert_eq!(pace.rate_hz(), 999);
    // It is not said without end.
    for _ in 0..100 {
        let _ = (1..10_000).find(|_| pace.review(&TERRIBLE).is_some());
        told += u32::from(pace.refused());
        pace.accepted();
    }
    assert_eq!(told + 1, REFUSALS_TOLD);
}

#[test]
fn a_rate_not_raised_was_not_raised_too_early() {
    let mut pace = RateController::at(999, true);
    assert_eq!(pace.review(&TERRIBLE).unwrap().rate_hz, 499);
    pace.accepted();
    assert_eq!((until_raised(&mut pace), pace.refused()), (PATIENCE + 1, true));
    let lowered = (1..100).find_map(|_| pace.review(&TERRIBLE)).unwrap().rate_hz;
    pace.accepted();
    assert_eq!((lowered, until_raised(&mut pace)), (249, PATIENCE + 1));
}

#[test]
fn a_budget_that_could_not_be_kept_is_tried_again() {
    let mut pace = budgeted(1.0);
    let dear = RateWindow { own_cpu_ns: 500 * 44_000, ..CLEAN };
    let _ = (0..100).find(|_| pace.review(&dear).is_some());
    assert!(pace.rate_hz() < 313 && pace.refused());
    let least = (PAUSE_NS / WINDOW_NS) as usize;
    let again = (1..100).find(|_| pace.review(&dear).is_some()).unwrap();
    assert!(pace.rate_hz() < 313 && (least..=least + UNHURRIED as usize + 1).contains(&again), "{again}");
}
