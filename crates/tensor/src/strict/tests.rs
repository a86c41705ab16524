//! What the strict device promises, and which mistakes it catches.

use std::os::unix::process::ExitStatusExt;
use std::process::Command;

use oarlock_kernels::{DType, Error, Isa, Par};

use crate::device::Device;
use crate::flat::{Backing, FlatBuffer};
use crate::launch::{Mode, Owner, View};
use crate::ops::{index_select, transfer};
use crate::tensor::Tensor;

fn device() -> Device {
    Device::strict(Isa::detect(), Par::solo())
}

fn tensor(device: &Device, values: &[f32]) -> Tensor {
    Tensor::from_slice(values, [values.len()], device).unwrap()
}

/// Asserts that the system ends a process that makes this mistake: runs the test of this name alone, which comes here
/// again.
fn assert_ended_by_the_system(test: &str, mistake: impl FnOnce()) {
    const MISTAKE: &str = "OARLOCK_TEST_MISTAKE";
    if std::env::var_os(MISTAKE).is_some() {
        mistake();
        return;
    }
    let path = format!("strict::tests::{test}");
    let mut child = Command::new(std::env::current_exe().unwrap());
    let output = child.args(["--exact", &path, "--nocapture"]).env(MISTAKE, "1").output().unwrap();
    assert!(String::from_utf8_lossy(&output.stdout).contains("running 1 test"), "no test {path}");
    // SIGSEGV
    assert_eq!(output.status.signal(), Some(11), "{output:?}");
}

#[test]
fn nothing_runs_before_somebody_looks_and_what_nobody_needs_runs_last() {
    let device = device();
    device.profile().enable_events();
    let x = tensor(&device, &[1.0, 2.0]);
    let y = x.exp().unwrap().log().unwrap();
    let _unused = x.tanh().unwrap();
    let z = x.square().unwrap();
    assert!(device.profile().take_events().is_empty());
    device.profile().enable_events();
    assert_eq!(z.to_vec::<f32>().unwrap(), [1.0, 4.0]);
    assert_eq!(y.to_vec::<f32>().unwrap(), [1.0, 2.0]);
    device.synchronize().unwrap();
    let order: Vec<_> = device.profile().take_events().iter().map(|event| event.op).collect();
    assert_eq!(order, ["square", "exp", "log", "tanh"]);
}

#[test]
fn a_device_without_forms_stages_every_op_and_the_profile_says_so() {
    let device = Device::staging(Isa::detect(), Par::solo());
    device.profile().enable();
    let x = tensor(&device, &[1.0, 2.0]).square().unwrap();
    assert_eq!(x.to_vec::<f32>().unwrap(), [1.0, 4.0]);
    let names: Vec<_> = device.profile().take().into_iter().map(|(name, _)| name).collect();
    assert_eq!(names, ["square (staged)"]);
}

#[test]
fn an_error_of_a_late_launch_comes_out_of_the_next_copy_with_the_name_of_the_op() {
    let device = device();
    let (x, ids) = (tensor(&device, &[1.0, 2.0]).reshape([2, 1]).unwrap(), [7i32]);
    let rows = index_select(&x, 0, &Tensor::from_slice(&ids, [1], &device).unwrap()).unwrap();
    let error = rows.to_vec::<f32>().unwrap_err();
    assert!(matches!(&error, Error::Launch { op: "index_select", .. }), "{error}");
    assert!(error.to_string().contains("index 7 at position 0 is outside 0..2"), "{error}");
    assert_eq!(x.to_vec::<f32>().unwrap(), [1.0, 2.0], "it is reported once");
}

#[test]
fn memory_ends_after_the_launches_that_use_it() {
    let device = device();
    let x = tensor(&device, &[3.0]);
    let y = x.square().unwrap();
    drop(x);
    device.arena().trim();
    assert_eq!(y.item::<f32>().unwrap(), 9.0);
}

/// The first planted mistake.
#[test]
fn a_host_read_without_a_copy_is_caught() {
    assert_ended_by_the_system("a_host_read_without_a_copy_is_caught", || {
        let x = tensor(&device(), &[1.0]);
        // SAFETY: none. This is the mistake.
        let value = unsafe { x.span().ptr.unwrap().cast::<f32>().read_volatile() };
        assert_eq!(value, 1.0);
    });
}

/// A view of `x` for a launch that did not declare it.
fn undeclared(device: &Device, x: &Tensor) -> View<f32> {
    device.quiet_launch("another").read(x).unwrap()
}

/// y = x, where the launch may forget to declare that it reads x.
fn copied(device: &Device, x: &Tensor, declares: bool) -> Tensor {
    let mut y = Tensor::uninit([1], DType::F32, device, "test").unwrap();
    let mut launch = device.quiet_launch("copied");
    let from = if declares { launch.read(x).unwrap() } else { undeclared(device, x) };
    let to = launch.write::<f32>(&mut y).unwrap();
    let copy = launch.run(move |cpu| to.slice(cpu)[0] = from.slice(cpu)[0]);
    copy.unwrap();
    y
}

/// The second planted mistake, caught by the memory.
#[test]
fn a_read_that_a_launch_does_not_declare_is_caught() {
    let device = device();
    assert_eq!(copied(&device, &tensor(&device, &[5.0]), true).item::<f32>().unwrap(), 5.0);
    assert_ended_by_the_system("a_read_that_a_launch_does_not_declare_is_caught", || {
        copied(&device, &tensor(&device, &[5.0]), false).item::<f32>().unwrap();
    });
}

/// Memory of the host.
struct HostMemory(Box<[f32; 16]>);

// SAFETY: a box of its own, of fixed size and address; nobody looks into it but the buffer made of it.
unsafe impl Backing for HostMemory {
    fn ptr(&self) -> *mut u8 {
        self.0.as_ptr().cast_mut().cast()
    }
    fn len_bytes(&self) -> usize {
        64
    }
}

/// The second planted mistake where the memory is open to everybody, caught by the result.
#[test]
fn a_dependency_that_a_launch_does_not_declare_changes_the_result() {
    let run = |declares: bool| {
        let device = device();
        let flat = FlatBuffer::over(Box::new(HostMemory(Box::new([1.0; 16]))));
        let doubled = |mode| {
            let (mut lease, mut launch) = (flat.write().unwrap(), device.quiet_launch("doubled"));
            let x = launch.write_flat::<f32>(&mut lease, &(0..16), mode).unwrap();
            let double = launch.run(move |cpu| x.slice(cpu).iter_mut().for_each(|x| *x *= 2.0));
            double.unwrap();
        };
        doubled(Mode::Update);
        let mut launch = device.quiet_launch("copied");
        let mut forgotten = device.quiet_launch("another");
        let lease = flat.read().unwrap();
        let declared = if declares { &mut launch } else { &mut forgotten };
        let from = declared.read_flat::<f32>(&lease, &(0..16)).unwrap();
        let mut y = Tensor::uninit([1], DType::F32, &device, "test").unwrap();
        let to = launch.write::<f32>(&mut y).unwrap();
        let copy = launch.run(move |cpu| to.slice(cpu)[0] = from.slice(cpu)[0]);
        copy.unwrap();
        let y = y.item::<f32>().unwrap();
        let all = transfer::read_with::<f32, _>(&flat, 0..16, <[f32]>::to_vec).unwrap();
        assert_eq!(all, [2.0; 16]);
        y
    };
    assert_eq!(run(true), 2.0);
    assert_eq!(run(false), 1.0, "it ran before what it needs");
}

/// The third planted mistake: a block is free, and has a new owner, while a launch still needs what is in it.
#[test]
fn a_block_that_forgets_its_launches_when_it_is_freed_changes_the_result() {
    let run = |forgets: bool| {
        let device = device();
        let x = tensor(&device, &[1.0]);
        let a = x.add_scalar(1.0).unwrap();
        a.item::<f32>().unwrap();
        let y = a.scale(10.0).unwrap();
        let Owner::Strict(guard) = a.span().owner else { panic!("a block of another device") };
        let (block, guard) = (a.span().ptr, guard.clone());
        drop(a);
        if forgets {
            guard.stamps().clear();
        }
        let b = x.add_scalar(100.0).unwrap();
        assert_eq!(b.span().ptr, block, "the block has a new owner");
        assert_eq!(b.item::<f32>().unwrap(), 101.0);
        y.item::<f32>().unwrap()
    };
    assert_eq!(run(false), 20.0);
    assert_eq!(run(true), 1010.0, "the new owner wrote before the launch had read");
}
