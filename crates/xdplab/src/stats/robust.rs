//! Order statistics.

/// The `p` quantile (0 to 1) of ascending values by linear interpolation between the two nearest (Hyndman and Fan 1996,
/// definition 7); `None` without values. `p` outside 0 to 1 gives the smallest or largest value.
#[must_use]
pub fn percentile(sorted: &[f64], p: f64) -> Option<f64> {
    let last = sorted.len().checked_sub(1)?;
    let place = p.clamp(0.0, 1.0) * last as f64;
    let below = place as usize;
    let above = (below + 1).min(last);
    Some(sorted[below] + (sorted[above] - sorted[below]) * place.fract())
}

/// The median; `None` without values. Reorders `values`.
#[must_use]
pub fn median(values: &mut [f64]) -> Option<f64> {
    let middle = values.len() / 2;
    if values.is_empty() {
        return None;
    }
    let odd = values.len() % 2 == 1;
    let (lower, &mut upper, _) = values.select_nth_unstable_by(middle, f64::total_cmp);
    let lower = if odd { upper } else { lower.iter().copied().max_by(f64::total_cmp)? };
    Some(f64::midpoint(lower, upper))
}

/// The median absolute deviation from the median, times 1.4826 so that it estimates the standard deviation of normal
/// values (Hampel 1974); `None` without values. Overwrites `values`.
#[must_use]
pub fn mad(values: &mut [f64]) -> Option<f64> {
    let centre = median(values)?;
    for value in values.iter_mut() {
        *value = (*value - centre).abs();
    }
    median(values).map(|deviation| 1.4826 * deviation)
}
