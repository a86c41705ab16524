//! The pool of host memory: what a free block serves, limits, and the accounts of a dry one.

use super::*;

#[test]
fn a_dropped_buffer_serves_the_next_of_its_size() {
    let arena = Arena::new();
    for bytes in [100, 3 << 20] {
        let before = arena.n_fresh();
        let first = arena.allocate(bytes, "test").unwrap();
        let ptr = first.span().ptr.unwrap();
        assert_eq!(ptr.addr().get() % ALIGN, 0);
        drop(first);
        let second = arena.allocate(bytes, "test").unwrap();
        assert_eq!(second.span().ptr, Some(ptr));
        let third = arena.allocate(bytes, "test").unwrap();
        assert_ne!(third.span().ptr, Some(ptr));
        assert_eq!(arena.n_fresh() - before, 2);
    }
    let usage = arena.usage()[0].1;
    assert_eq!((usage.bytes, usage.n_buffers), (0, 0));
    assert!(usage.peak_bytes >= 6 << 20);
    arena.trim();
    assert_eq!(arena.bytes(), 0);
}

#[test]
fn what_is_borrowed_is_the_smallest_free_block_that_is_large_enough() {
    let arena = Arena::new();
    let sizes = [64, 4096, 1 << 20];
    drop(sizes.map(|bytes| arena.allocate(bytes, "test").unwrap()));
    assert_eq!(arena.free(), sizes);
    // A tensor of this size takes none of them.
    let borrowed = [100, 100, 100].map(|bytes| arena.borrow(bytes, "test").unwrap().len_bytes());
    assert_eq!(borrowed, [4096; 3], "given back, it is there again");
    let held = [100, 100, 100].map(|bytes| arena.borrow(bytes, "test").unwrap());
    assert_eq!(held.each_ref().map(Buffer::len_bytes), [4096, 1 << 20, 128]);
    assert_eq!((arena.free(), arena.n_fresh()), (vec![64], 4));
}

#[test]
fn a_dry_pool_keeps_the_same_accounts_without_memory() {
    let (dry, real) = (Arena::dry(), Arena::new());
    let accounts = [&dry, &real].map(|arena| {
        let kept = arena.allocate(5000, "kept").unwrap();
        drop(arena.allocate(3 << 20, "scratch").unwrap());
        drop(arena.allocate(3 << 20, "scratch").unwrap());
        drop(arena.allocate(2 << 20, "scratch").unwrap());
        let accounts = (arena.usage(), arena.bytes(), arena.n_fresh(), kept.len_bytes());
        drop(kept);
        arena.trim();
        (accounts, arena.bytes())
    });
    assert_eq!(accounts[0], accounts[1]);
    let huge = dry.allocate(1 << 50, "more than there is").unwrap();
    assert!(huge.span().ptr.is_none() && huge.len_bytes() == 1 << 50);
}

#[test]
fn above_its_limit_a_pool_gives_free_blocks_back_for_fresh_ones() {
    let arena = Arena::new();
    arena.set_limit(10_000);
    let sizes = [1024, 2048, 4096];
    drop(sizes.map(|bytes| arena.allocate(bytes, "test").unwrap()));
    let held = arena.allocate(2816, "test").unwrap();
    assert_eq!((arena.bytes(), arena.free()), (1024 + 2048 + 4096 + 2816, sizes.to_vec()));
    let more = arena.allocate(1536, "test").unwrap();
    assert_eq!((arena.bytes(), arena.free()), (4096 + 2816 + 1536, vec![4096]), "the oldest went");
    // What is in use stays.
    let much = arena.allocate(9984, "test").unwrap();
    assert_eq!((arena.bytes(), arena.free()), (2816 + 1536 + 9984, vec![]));
    drop((held, more, much));
    assert_eq!(arena.free(), [1536, 2816, 9984]);
}

#[test]
fn above_its_limit_a_pool_resizes_the_mapping_of_a_free_block() {
    let arena = Arena::new();
    arena.set_limit(5 << 20);
    let fill = |buffer: &Buffer, value: u8| {
        // SAFETY: the span is the buffer's memory, and nothing else uses it.
        unsafe { buffer.span().ptr.unwrap().write_bytes(value, buffer.len_bytes()) }
    };
    let first_byte = |buffer: &Buffer| {
        // SAFETY: as above; the memory is initialized.
        unsafe { buffer.span().ptr.unwrap().read() }
    };
    for (value, sizes) in [(1, [3 << 20, 4 << 20]), (2, [4 << 20, 2 << 20])] {
        let before = arena.allocate(sizes[0], "test").unwrap();
        fill(&before, value);
        drop(before);
        let after = arena.allocate(sizes[1], "test").unwrap();
        assert_eq!(first_byte(&after), value, "the pages stayed");
        assert_eq!((arena.bytes(), arena.free()), (sizes[1], vec![]));
        // All of it is there.
        fill(&after, 3);
    }
    assert_eq!(arena.usage()[0].1.bytes, 0);
}

#[test]
fn impossible_sizes_are_errors() {
    assert!(matches!(Arena::new().allocate(1 << 60, "test"), Err(Error::OutOfMemory { .. })));
}
