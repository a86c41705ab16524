//! A fault on purpose, by which `.ci/asan` shows that AddressSanitizer watches the kernels.

#[test]
#[ignore = "reads freed memory, for `.ci/asan` and Miri"]
fn child_reads_freed_memory() {
    let values = vec![1.0f64; 100];
    // SAFETY: none once the vector is gone. This is the mistake.
    let freed = unsafe { std::slice::from_raw_parts(values.as_ptr(), values.len()) };
    drop(values);
    std::hint::black_box(oarlock_kernels::sums::tree_sum(freed));
}
