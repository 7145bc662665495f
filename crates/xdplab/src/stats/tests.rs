use super::simulated::Machine;
use super::*;

#[test]
fn a_planted_difference_is_found_with_its_size() {
    let machine = Machine { costs: vec![66.5, 67.5], blocks: 1000, ..Machine::default() };
    let comparison = compare(&machine.run(1), 0, 1, Level::default()).unwrap();
    assert!((comparison.difference.delta.estimate - 1.0).abs() < 0.3, "{comparison:?}");
    assert!(comparison.difference.p_value < 0.001, "{comparison:?}");
    assert!(comparison.difference.equivalent_within(2.0) && !comparison.difference.equivalent_within(1.0));
}

#[test]
fn the_order_of_the_slices_does_not_change_a_bit_of_the_result() {
    let mut slices = Machine { blocks: 200, ..Machine::default() }.run(2);
    let comparison = compare(&slices, 0, 1, Level::default()).unwrap();
    slices.reverse();
    assert_eq!(compare(&slices, 0, 1, Level::default()).unwrap(), comparison);
}

#[test]
fn without_slices_there_is_a_reason_instead_of_a_number() {
    assert_eq!(compare(&[], 0, 1, Level::default()), Err(NotEnough::Slices { variant: 0 }));
    let few = Machine { blocks: 39, ..Machine::default() }.run(3);
    assert_eq!(compare(&few, 0, 1, Level::default()), Err(NotEnough::Blocks { blocks: 39, needed: 40 }));
    assert_eq!(compare_units(&[1.0], &[2.0], Level::default()), Err(NotEnough::Units { baseline: 1, candidate: 1 }));
}
