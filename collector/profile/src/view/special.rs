//! The special functions of statistics that the standard library lacks.

fn ln_gamma(x: f64) -> f64 {
    const COEFFICIENTS: [f64; 8] = [
        676.520_368_121_885_1,
        -1_259.139_216_722_402_8,
        771.323_428_777_653_1,
        -176.615_029_162_140_6,
        12.507_343_278_686_905,
        -0.138_571_095_265_720_12,
        9.984_369_578_019_572e-6,
        1.505_632_735_149_311_6e-7,
    ];
    let x = x - 1.0;
    let sum: f64 = (1u32..).zip(COEFFICIENTS).map(|(i, c)| c / (x + f64::from(i))).sum();
    let t = x + 7.5;
    0.5 * std::f64::consts::TAU.ln() + (x + 0.5) * t.ln() - t + (sum + 0.999_999_999_999_809_9).ln()
}

pub(super) fn ln_choose(n: f64, k: f64) -> f64 {
    ln_gamma(n + 1.0) - ln_gamma(k + 1.0) - ln_gamma(n - k + 1.0)
}

/// The chance that Student's t with `freedom` degrees of freedom is beyond `t` on either side.
pub(super) fn student(t: f64, freedom: f64) -> f64 {
    incomplete_beta(freedom / 2.0, 0.5, freedom / (freedom + t * t))
}

fn incomplete_beta(a: f64, b: f64, x: f64) -> f64 {
    if x <= 0.0 || x >= 1.0 {
        return if x >= 1.0 { 1.0 } else { 0.0 };
    }
    if x > (a + 1.0) / (a + b + 2.0) {
        return 1.0 - incomplete_beta(b, a, 1.0 - x);
    }
    let front = (ln_gamma(a + b) - ln_gamma(a) - ln_gamma(b) + a * x.ln() + b * (1.0 - x).ln()).exp() / a;
    let nonzero = |y: f64| if y.abs() < 1e-300 { 1e-300 } else { y };
    let (mut c, mut d) = (1.0, 1.0 / nonzero(1.0 - (a + b) * x / (a + 1.0)));
    let mut fraction = d;
    for m in 1..1_000 {
        let m = f64::from(m);
        let even = m * (b - m) * x / ((a + 2.0 * m - 1.0) * (a + 2.0 * m));
        let odd = -(a + m) * (a + b + m) * x / ((a + 2.0 * m) * (a + 2.0 * m + 1.0));
        let mut step = 1.0;
        for numerator in [even, odd] {
            d = 1.0 / nonzero(1.0 + numerator * d);
            c = nonzero(1.0 + numerator / c);
            step = c * d;
            fraction *= step;
        }
        if (step - 1.0).abs() < 1e-14 {
            break;
        }
    }
    (front * fraction).clamp(0.0, 1.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn student_s_t_is_that_of_the_tables() {
        // Two-sided 5%, 1% and 0.1% points.
        for (freedom, points) in [
            (1.0, [12.706_205, 63.656_741, 636.619_249]),
            (2.0, [4.302_653, 9.924_843, 31.599_055]),
            (4.0, [2.776_445, 4.604_095, 8.610_302]),
            (10.0, [2.228_139, 3.169_273, 4.586_894]),
            (120.0, [1.979_930, 2.617_421, 3.373_454]),
            (1e6, [1.959_966, 2.575_834, 3.290_536]),
        ] {
            for (t, p) in points.into_iter().zip([0.05, 0.01, 0.001]) {
                let computed = student(t, freedom);
                assert!((computed - p).abs() < 2e-6, "{freedom} {t}: {computed}");
            }
        }
        assert_eq!(student(0.0, 3.0), 1.0);
        assert_eq!(student(f64::INFINITY, 3.0), 0.0);
    }

    #[test]
    fn ways_to_choose() {
        for (n, k, ways) in [(4.0, 2.0, 6.0), (52.0, 5.0, 2_598_960.0), (10.0, 0.0, 1.0), (7.0, 7.0, 1.0)] {
            assert!((ln_choose(n, k).exp() / ways - 1.0f64).abs() < 1e-11, "{n} {k}");
        }
    }
}
