//! Measures what a piece of code allocates.
//!
//! A limit on the process would only meet an allocation that is absurd. What is promised is
//! tighter: the decoder allocates nothing, and the configuration's readers stay in proportion to
//! the file. So each target asks for the most that was held at once while it ran.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// The system's allocator, with an account.
struct Metered;

static HELD: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

fn took(bytes: usize) {
    let held = HELD.fetch_add(bytes, Relaxed) + bytes;
    PEAK.fetch_max(held, Relaxed);
}

// Each call is handed on as it is.
unsafe impl GlobalAlloc for Metered {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        took(layout.size());
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        HELD.fetch_sub(layout.size(), Relaxed);
        unsafe { System.dealloc(at, layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        took(new_size);
        HELD.fetch_sub(layout.size(), Relaxed);
        unsafe { System.realloc(at, layout, new_size) }
    }
}

#[global_allocator]
static ALLOCATOR: Metered = Metered;

/// The most bytes that `run` held at once, beyond what was held before it.
pub fn most_held(run: impl FnOnce()) -> usize {
    let before = HELD.load(Relaxed);
    PEAK.store(before, Relaxed);
    run();
    PEAK.load(Relaxed) - before
}

/// Panics if a reader held more than a text of this size may cost: a tree and its faults cost many
/// times what they are written with, and aliases may repeat a bounded part of it.
pub fn assert_in_proportion(held: usize, text: &str) {
    const FOR_A_BYTE: usize = 2 << 10;
    const FOR_ALIASES: usize = 32 << 20;
    let may = FOR_A_BYTE * text.len() + FOR_ALIASES;
    assert!(
        held <= may,
        "{} bytes of text cost {held} bytes",
        text.len()
    );
}
