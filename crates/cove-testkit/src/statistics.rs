//! The few statistics that mean something on a noisy machine.

/// Returns the value below which `part` of the times are.
pub fn percentile(times: &[f64], part: f64) -> f64 {
    let mut sorted = times.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted[((sorted.len() - 1) as f64 * part).round() as usize]
}

/// Returns the median of the ratios within each round, in which noise that affects both sides cancels out. Between two
/// middle ratios it is their geometric mean, so that exchanged sides give the inverse.
pub fn ratio(times: &[f64], base: &[f64]) -> f64 {
    let mut ratios: Vec<f64> = times.iter().zip(base).map(|(time, base)| time / base).collect();
    ratios.sort_by(f64::total_cmp);
    (ratios[(ratios.len() - 1) / 2] * ratios[ratios.len() / 2]).sqrt()
}
