//! What wasmer's C API does not give: a stack size for each guest, and where memories and globals are kept.
//!
//! Everything else of the library is `wasmer-c-api`, exported as it is.

use std::cell::Cell;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex};

use api::sys::{BaseTunables, NativeEngineExt, Tunables};
use api::Engine;
use capi::wasm_c_api::engine::wasm_engine_t;
use capi::wasm_c_api::externals::{wasm_func_call, wasm_func_t};
use capi::wasm_c_api::trap::wasm_trap_t;
use capi::wasm_c_api::value::wasm_val_vec_t;
use vm::{
    MemoryError, MemoryStyle, TableStyle, VMConfig, VMGlobal, VMGlobalDefinition, VMMemory, VMMemoryDefinition, VMTable,
    VMTableDefinition,
};
use wasmer_types::{GlobalType, MemoryType, TableType};

/// Addresses of what generated code itself uses, in the order of the module's own memories and globals.
#[derive(Default)]
struct Addresses {
    memories: Vec<usize>,
    globals: Vec<usize>,
}

type Definitions = Arc<Mutex<Addresses>>;

/// The engine of one guest: it shares code and compiler with the engine that it was made from. In C, a `wasm_engine_t`.
#[repr(C)]
pub struct Guest {
    engine: Engine, // first, and alone, in wasm_engine_t too
    definitions: Definitions,
}

const _: () = assert!(size_of::<wasm_engine_t>() == size_of::<Engine>());

struct GuestTunables {
    base: BaseTunables,
    config: VMConfig,
    definitions: Definitions,
}

impl Tunables for GuestTunables {
    fn memory_style(&self, memory: &MemoryType) -> MemoryStyle {
        self.base.memory_style(memory)
    }

    fn table_style(&self, table: &TableType) -> TableStyle {
        self.base.table_style(table)
    }

    fn create_host_memory(&self, ty: &MemoryType, style: &MemoryStyle) -> Result<VMMemory, MemoryError> {
        self.base.create_host_memory(ty, style)
    }

    unsafe fn create_vm_memory(
        &self,
        ty: &MemoryType,
        style: &MemoryStyle,
        definition: NonNull<VMMemoryDefinition>,
    ) -> Result<VMMemory, MemoryError> {
        self.definitions.lock().unwrap().memories.push(definition.as_ptr() as usize);
        unsafe { self.base.create_vm_memory(ty, style, definition) }
    }

    fn create_host_table(&self, ty: &TableType, style: &TableStyle) -> Result<VMTable, String> {
        self.base.create_host_table(ty, style)
    }

    unsafe fn create_vm_table(
        &self,
        ty: &TableType,
        style: &TableStyle,
        definition: NonNull<VMTableDefinition>,
    ) -> Result<VMTable, String> {
        unsafe { self.base.create_vm_table(ty, style, definition) }
    }

    unsafe fn create_vm_global(
        &self,
        ty: GlobalType,
        definition: NonNull<VMGlobalDefinition>,
    ) -> Result<VMGlobal, String> {
        self.definitions.lock().unwrap().globals.push(definition.as_ptr() as usize);
        unsafe { self.base.create_vm_global(ty, definition) }
    }

    fn vmconfig(&self) -> &VMConfig {
        &self.config
    }
}

/// An engine for one store, whose guests have `stack_bytes` of stack (8 KiB at least). Free it by `wasmckpt_guest_delete`.
///
/// # Safety
/// `engine` comes from `wasm_engine_new_with_config`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wasmckpt_guest_new(engine: *const wasm_engine_t, stack_bytes: usize) -> *mut Guest {
    let definitions = Definitions::default();
    let mut engine = unsafe { &*engine.cast::<Engine>() }.clone();
    engine.set_tunables(GuestTunables {
        base: BaseTunables::new(),
        config: VMConfig { wasm_stack_size: Some(stack_bytes) },
        definitions: definitions.clone(),
    });
    Box::into_raw(Box::new(Guest { engine, definitions }))
}

/// # Safety
/// `guest` comes from `wasmckpt_guest_new`, and is not used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wasmckpt_guest_delete(guest: *mut Guest) {
    drop(unsafe { Box::from_raw(guest) });
}

/// Address of the two words `{base, length}` of the `index`-th memory that the guest's instance defines; 0: none.
///
/// # Safety
/// `guest` comes from `wasmckpt_guest_new`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wasmckpt_guest_memory(guest: *const Guest, index: usize) -> usize {
    unsafe { &*guest }.definitions.lock().unwrap().memories.get(index).copied().unwrap_or(0)
}

/// Address of the 16 bytes of the `index`-th global that the guest's instance defines; 0: none.
///
/// # Safety
/// `guest` comes from `wasmckpt_guest_new`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wasmckpt_guest_global(guest: *const Guest, index: usize) -> usize {
    unsafe { &*guest }.definitions.lock().unwrap().globals.get(index).copied().unwrap_or(0)
}

thread_local! {
    /// Size of the stack that this thread keeps for its next call; 0: it has none yet.
    static STACK_BYTES: Cell<usize> = const { Cell::new(0) };
}

/// `wasm_func_call` for a guest with `stack_bytes` of stack. Stacks that are kept for reuse are dropped where another
/// size is asked for: any that is large enough would be taken, and the guest would meet another limit than its own.
///
/// # Safety
/// As for `wasm_func_call`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wasmckpt_func_call(
    stack_bytes: usize,
    func: Option<&mut wasm_func_t>,
    args: Option<&wasm_val_vec_t>,
    results: &mut wasm_val_vec_t,
) -> Option<Box<wasm_trap_t>> {
    if STACK_BYTES.replace(stack_bytes) != stack_bytes {
        vm::drain_stack_pool();
    }
    let trap = unsafe { wasm_func_call(func, args, results) };
    STACK_BYTES.set(stack_bytes); // a host function may have called another guest in between
    trap
}
