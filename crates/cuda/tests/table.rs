//! The table of kernels against the kernels: every name, every parameter.

use std::collections::BTreeSet;

use oarlock_cuda::attention::tiled_instances;
use oarlock_cuda::table;

use crate::emulator::{emulated_units, on_emulator};

#[test]
fn every_kernel_is_in_the_table_with_its_parameters() {
    on_emulator(|library| {
        let compiled: BTreeSet<String> = library.kernels().into_iter().collect();
        let mut declared = BTreeSet::new();
        let run = emulated_units();
        let instances = table::all().flat_map(|kernel| kernel.instances()).chain(tiled_instances());
        for instance in instances.filter(|instance| run.contains(&instance.unit())) {
            let name = instance.name();
            assert_eq!(library.signature(&name), Some(instance.signature()), "{name}");
            assert!(declared.insert(name.clone()), "{name} is twice in the table");
        }
        assert_eq!(declared, compiled);
    });
}

#[test]
fn an_instance_is_found_by_its_dtypes() {
    use oarlock_cuda::Element::{BF16, F32};
    let norm = table::find("rms_norm_forward").unwrap();
    assert_eq!(norm.instance(&[BF16, F32, BF16], None).unwrap().name(), "rms_norm_forward_bf16_f32_bf16");
    assert_eq!(norm.instance(&[BF16, F32, F32], None), None);
    assert!(table::find("no_such_op").is_none());
}
