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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn adjusted_values_are_those_of_the_r_language() {
        // p.adjust(c(0.04, 0.001, 0.5, 0.01), "BH")
        let adjusted = benjamini_hochberg(&[0.04, 0.001, 0.5, 0.01]);
        for (found, expected) in adjusted.iter().zip([0.16 / 3.0, 0.004, 0.5, 0.02]) {
            assert!((found - expected).abs() < 1e-12, "{adjusted:?}");
        }
        // A large p-value is not raised above those behind it: p.adjust(c(0.01, 0.02, 0.03, 0.04, 0.05), "BH")
        for found in benjamini_hochberg(&[0.01, 0.02, 0.03, 0.04, 0.05]) {
            assert!((found - 0.05).abs() < 1e-12);
        }
        assert_eq!(benjamini_hochberg(&[]), Vec::<f64>::new());
    }

    proptest! {
        #[test]
        fn adjusting_never_makes_a_difference_clearer_and_keeps_the_order(
            p_values in prop::collection::vec(0.0..=1.0, 1..30),
        ) {
            let adjusted = benjamini_hochberg(&p_values);
            for (i, &p) in p_values.iter().enumerate() {
                prop_assert!(p <= adjusted[i] && adjusted[i] <= 1.0);
                for (j, &other) in p_values.iter().enumerate() {
                    prop_assert!(p > other || adjusted[i] <= adjusted[j]);
                }
            }
        }
    }
}
