//! The example of a program on the engine alone learns what it is to learn.

use oarlock_comm::Communicator;
use oarlock_engine::{Accelerator, AcceleratorConfig};

#[path = "../examples/image_classifier.rs"]
#[allow(dead_code)]
mod image_classifier;

#[test]
fn drawings_are_told_apart_after_training() {
    let config = AcceleratorConfig { threads: Some(1), ..AcceleratorConfig::default() };
    let accelerator = Accelerator::over(Communicator::solo(), &config).unwrap();
    let [before, after] = image_classifier::train(&accelerator, 4).unwrap();
    assert!(before < 0.6 && after > 0.95, "{before} {after}");
}
