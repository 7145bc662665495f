//! Many comparisons at once.

/// The p-values adjusted for looking at all of them, in the order given (Benjamini and Hochberg 1995, step-up): calling
/// those at or below `q` different keeps the expected share of false ones among them at `q`.
#[must_use]
pub fn benjamini_hochberg(p_values: &[f64]) -> Vec<f64> {
    let mut order: Vec<usize> = (0..p_values.len()).collect();
    order.sort_by(|&a, &b| p_values[b].total_cmp(&p_values[a]));
    let mut adjusted = vec![1.0; p_values.len()];
    let mut smallest: f64 = 1.0;
    for (place, &index) in order.iter().enumerate() {
        let factor = p_values.len() as f64 / (p_values.len() - place) as f64;
        smallest = smallest.min(p_values[index] * factor);
        adjusted[index] = smallest;
    }
    adjusted
}
