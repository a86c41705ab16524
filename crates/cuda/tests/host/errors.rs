//! Every call of the driver can fail, and says so; what ends is quiet.

use std::sync::Arc;

use oarlock_cuda::blas::{Blas, Form, Layout, Operand, Precision, Product};
use oarlock_cuda::cache::Cache;
use oarlock_cuda::driver::Arg;
use oarlock_cuda::modules::Modules;
use oarlock_cuda::{Element, Error, Result, geometry, table};

use super::Machine;

/// What the fake driver does not know by name.
const UNKNOWN: i32 = 12345;

/// Uses every function of the driver and of cuBLASLt.
fn tour(machine: &Machine) -> Result<()> {
    let driver = oarlock_cuda::driver::Driver::find(&machine.libraries())?;
    driver.version()?;
    let device = driver.device(0)?;
    device.name()?;
    device.uuid()?;
    device.pci_id()?;
    device.memory_bytes()?;
    device.capability()?;
    let (context, peer) = (device.context()?, driver.device(1)?.context()?);
    context.memory_info()?;
    let (stream, other) = (Arc::new(context.stream()?), peer.priority_stream()?);
    let (memory, on_peer) = (context.alloc(256)?, peer.alloc(256)?);
    let mut host = context.alloc_pinned(256)?;
    stream.copy_to_device(&host, 0, memory.all())?;
    stream.copy_to_host(memory.all(), &mut host, 0)?;
    host.read(|_| ())?;
    stream.copy(memory.slice(0..128)?, memory.slice(128..256)?)?;
    stream.copy(memory.all(), on_peer.all())?;
    stream.fill(memory.all(), 0)?;
    stream.fill_words(memory.all(), 0)?;
    let (start, end) = (context.timing_event()?, context.timing_event()?);
    start.record(&stream)?;
    end.record(&stream)?;
    other.wait(&end)?;
    end.synchronize()?;
    end.is_done()?;
    end.milliseconds_since(&start)?;
    let modules = Modules::new(&context, &machine.libraries(), Cache::none())?;
    let soft_cap =
        table::find("soft_cap").and_then(|kernel| kernel.instance(&[], None)).expect("an instance");
    let function = modules.function(&soft_cap)?;
    function.local_bytes()?;
    let args = [Arg::memory(Element::F32, memory.all()), Arg::f32(1.0), Arg::u64(64)];
    let large = oarlock_cuda::geometry::Geometry { shared_bytes: 100 << 10, ..geometry::elements(64) };
    // SAFETY: there are 64 elements.
    unsafe { stream.launch(&function, large, &args) }?;
    let blas = Blas::new(&stream, &machine.libraries(), 1 << 16)?;
    let (a, b, d) = (memory.slice(0..16)?, memory.slice(16..32)?, memory.slice(32..48)?);
    let layout = Layout::dense(2, 2);
    let operand = |memory| Operand { memory, layout, form: Form::AsStored };
    blas.multiply(&Product {
        precision: Precision::F32,
        out: Element::F32,
        batch: 1,
        alpha: 1.0,
        beta: 0.0,
        a: operand(a),
        b: operand(b),
        c: None,
        d,
        d_layout: layout,
        bias: None,
    })?;
    stream.synchronize()?;
    context.synchronize()
}

#[test]
fn every_call_of_the_driver_may_fail() {
    for call in [
        "cuInit",
        "cuDriverGetVersion",
        "cuDeviceGetCount",
        "cuDeviceGet",
        "cuDeviceGetName",
        "cuDeviceGetUuid_v2",
        "cuDeviceTotalMem_v2",
        "cuDeviceGetAttribute",
        "cuDeviceGetPCIBusId",
        "cuDevicePrimaryCtxRetain",
        "cuCtxGetCurrent",
        "cuCtxSetCurrent",
        "cuCtxSynchronize",
        "cuMemGetInfo_v2",
        "cuMemAlloc_v2",
        "cuMemHostAlloc",
        "cuMemcpyHtoDAsync_v2",
        "cuMemcpyDtoHAsync_v2",
        "cuMemcpyDtoDAsync_v2",
        "cuMemcpyPeerAsync",
        "cuMemsetD8Async",
        "cuMemsetD32Async",
        "cuStreamCreate",
        "cuStreamCreateWithPriority",
        "cuCtxGetStreamPriorityRange",
        "cuStreamSynchronize",
        "cuStreamWaitEvent",
        "cuEventCreate",
        "cuEventRecord",
        "cuEventQuery",
        "cuEventSynchronize",
        "cuEventElapsedTime",
        "cuModuleLoadData",
        "cuModuleGetFunction",
        "cuFuncSetAttribute",
        "cuFuncGetAttribute",
        "cuLaunchKernel",
    ] {
        // Each on a machine of its own, which sees what a failure leaves behind.
        let Some(machine) = Machine::new() else { return };
        machine.fail(call, 0, UNKNOWN);
        match tour(&machine) {
            Err(Error::Driver(error)) => {
                assert_eq!((error.call, error.code), (call, UNKNOWN));
                let said = error.to_string();
                assert!(said.starts_with(&format!("{call} failed: CUresult 12345")), "{said}");
            }
            other => panic!("{call}: {other:?}"),
        }
    }
}

#[test]
fn what_ends_is_quiet() {
    for call in [
        "cuDevicePrimaryCtxRelease_v2",
        "cuMemFree_v2",
        "cuMemFreeHost",
        "cuStreamDestroy_v2",
        "cuEventDestroy_v2",
        "cuModuleUnload",
    ] {
        let Some(mut machine) = Machine::new() else { return };
        machine.fail(call, 0, UNKNOWN);
        tour(&machine).unwrap_or_else(|error| panic!("{call}: {error}"));
        assert_ne!(machine.alive(), "", "{call} did not fail");
        machine.expect_leaks();
    }
}

#[test]
fn every_call_of_cublaslt_may_fail() {
    for call in [
        "cublasLtMatmulDescCreate",
        "cublasLtMatmulDescSetAttribute",
        "cublasLtMatrixLayoutCreate",
        "cublasLtMatmulPreferenceCreate",
        "cublasLtMatmulPreferenceSetAttribute",
        "cublasLtMatmulAlgoGetHeuristic",
        "cublasLtMatmul",
    ] {
        let Some(machine) = Machine::new() else { return };
        machine.fail(call, 0, 14);
        match tour(&machine) {
            Err(Error::Blas { call: named, version, status, text }) => {
                assert_eq!((named, version.as_str()), (call, "13.1.0"));
                assert_eq!(status, "CUBLAS_STATUS_INTERNAL_ERROR");
                assert!(text.contains("says of it"), "{text}");
            }
            other => panic!("{call}: {other:?}"),
        }
    }
}

#[test]
fn a_tour_leaves_nothing_behind() {
    let Some(machine) = Machine::new() else { return };
    tour(&machine).expect("a tour");
    assert_eq!(machine.alive(), "");
}

#[test]
fn a_context_that_is_gone_makes_ends_quiet() {
    let Some(machine) = Machine::new() else { return };
    let context = machine.context(0);
    let stream = context.stream().expect("a stream");
    let memory = context.alloc(100).expect("memory");
    let mut host = context.alloc_pinned(100).expect("memory");
    let event = context.event().expect("an event");
    stream.copy_to_host(memory.all(), &mut host, 0).expect("a copy");
    machine.reset(0);
    match stream.synchronize() {
        Err(Error::Driver(error)) => {
            assert_eq!(error.name, "CUDA_ERROR_CONTEXT_IS_DESTROYED");
            assert!(error.to_string().contains("something else in the process"), "{error}");
        }
        other => panic!("{other:?}"),
    }
    assert!(host.read(|_| ()).is_err());
    drop((stream, memory, host, event));
    drop(context);
    // The device is as new.
    let context = machine.context(0);
    context.alloc(10).expect("memory");
}

#[test]
fn errors_say_what_to_do() {
    for (code, says) in [
        (2, "smaller batch"),
        (34, "stub"),
        (100, "CUDA_VISIBLE_DEVICES"),
        (209, "newer compiler"),
        (803, "update the driver"),
        (999, "dmesg"),
    ] {
        let Some(machine) = Machine::new() else { return };
        machine.fail("cuInit", 0, code);
        let said =
            oarlock_cuda::driver::Driver::find(&machine.libraries()).err().expect("an error").to_string();
        assert!(said.contains(says), "{said}");
    }
}
