//! Where the time of a packet goes.

use xdplab::explain::{COUNTING, Part, explain};
use xdplab::reading::Reading;
use xdplab::topology::Placement;

use crate::common::{FakeRig, Model, plan, program};
use crate::measure;

fn ns(parts: &[Part], what: &str) -> Result<f64, String> {
    parts.iter().find(|part| part.what.starts_with(what)).unwrap().ns.clone().into_result()
}

#[test]
fn the_parts_of_a_packet_add_up_and_what_is_not_known_says_why() {
    use xdplab::device::Operation;
    let case = measure(&plan(vec![program(Operation::ReadData, 0)]), FakeRig::new(Model::default()));
    let mut alone = case.clone();
    for (cost, planted) in alone.costs.iter_mut().zip([1.0, 3.0]) {
        let mut difference = case.comparisons[0].comparison.estimate().unwrap().difference;
        difference.delta.estimate = planted;
        cost.program_alone = Some(difference);
    }
    let alone = Reading::Known(alone);
    let parts = explain(&case, &alone, "EPERM");
    let whole = ns(&parts, "a packet of drop:no-touch").unwrap();
    // The fake's softirqs take 4000 ns for each poll of 64 packets.
    let softirq = ns(&parts, "in the NET_RX softirq").unwrap();
    assert!((softirq - 4000.0 / 64.0).abs() < 0.1, "{softirq}");
    let outside = ns(&parts, "outside of it").unwrap();
    assert!((whole - softirq - outside).abs() < 1e-9);
    assert_eq!(ns(&parts, "the program drop:no-touch alone"), Ok(1.0));
    assert_eq!(ns(&parts, "our own counting"), Ok(1.0));
    assert_eq!(ns(&parts, "the program drop:read-data alone"), Ok(3.0));
    let unknown = explain(&case, &Reading::Known(case.clone()), "EPERM");
    assert!(ns(&unknown, "our own counting").is_err(), "an ordinary run does not tell a program alone");
    assert_eq!(ns(&parts, "by kernel function"), Err("EPERM".into()));
    assert_eq!(COUNTING, "drop:no-touch");
}

#[test]
fn without_a_test_run_or_a_shared_cpu_the_parts_say_so() {
    let mut case = measure(&plan(Vec::new()), FakeRig::new(Model::default()));
    case.plan.placement = Placement::Split { generator_cpu: 0, dut_cpu: 1 };
    let parts = explain(&case, &Reading::not_available("no privileges"), "EPERM");
    assert!(ns(&parts, "in the NET_RX softirq").unwrap_err().contains("thread"));
    assert!(ns(&parts, "outside of it").is_err());
    assert_eq!(ns(&parts, "our own counting"), Err("no privileges".into()));
}
