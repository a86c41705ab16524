//! The kernels of a context: compiled when they are first asked for, kept on disk, loaded once.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use crate::attention::Tile;
use crate::cache::{Cache, Key};
use crate::compile::{self, Outcome};
use crate::driver::{Context, Function, Module};
use crate::element::Element;
use crate::error::{Error, Result};
use crate::kernel::Instance;
use crate::libraries::Libraries;
use crate::nvrtc::{Compiler, Compilers, Nvrtc};
use crate::source::Unit;
use crate::table;

/// The first compute capability with `mma` of bfloat16 and `cp.async`.
pub(crate) const LEAST_CAPABILITY: (u32, u32) = (8, 0);

/// The modules of a context.
pub struct Modules {
    context: Context,
    compilers: Compilers,
    cache: Cache,
    /// Each unit has a lock of its own, so that different ones compile at the same time.
    units: Mutex<BTreeMap<Unit, Arc<Mutex<Option<Module>>>>>,
    functions: Mutex<HashMap<String, Arc<Function>>>,
    /// The same by what launches ask for, found without a name.
    asked: Mutex<HashMap<Asked, Option<Arc<Function>>>>,
    /// Whether the first unit of a training run brings the others with it.
    compiles_ahead: bool,
    /// The units that were compiled.
    compiled: Mutex<BTreeSet<Unit>>,
    n_from_disk: AtomicUsize,
    /// Nanoseconds.
    compiling: AtomicU64,
}

/// An op, the dtypes of an instance, its head dim and its tile.
type Asked = (&'static str, [Option<Element>; MOST_DTYPES], Option<u32>, Option<Tile>);

/// The most dtypes of an instance.
pub const MOST_DTYPES: usize = 3;

/// Where the modules came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counts {
    /// Units that were compiled.
    pub compiled: usize,
    /// Units that the cache had.
    pub from_disk: usize,
}

/// Adds the time of its life to a number of nanoseconds.
struct Timed<'a> {
    total: &'a AtomicU64,
    start: Instant,
}

impl Drop for Timed<'_> {
    fn drop(&mut self) {
        let nanos = u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.total.fetch_add(nanos, Ordering::Relaxed);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Modules {
    /// None is loaded yet. The compiler is looked for where these libraries are.
    ///
    /// # Errors
    /// [`Error::OldDevice`], or the driver's own.
    pub fn new(context: &Context, libraries: &Libraries, cache: Cache) -> Result<Modules> {
        let capability = context.device().capability()?;
        if capability < LEAST_CAPABILITY {
            return Err(Error::OldDevice { name: context.device().name()?, capability });
        }
        Ok(Modules {
            context: context.clone(),
            compilers: Compilers::new(libraries, context.device())?,
            cache,
            units: Mutex::default(),
            functions: Mutex::default(),
            asked: Mutex::default(),
            compiles_ahead: false,
            compiled: Mutex::default(),
            n_from_disk: AtomicUsize::new(0),
            compiling: AtomicU64::new(0),
        })
    }

    /// The same, but where a training run needs a unit that is not on disk, all that it is about to need are compiled on
    /// all cores.
    pub fn compiling_ahead(self) -> Modules {
        Modules { compiles_ahead: true, ..self }
    }

    /// The context that they belong to.
    pub fn context(&self) -> &Context {
        &self.context
    }

    /// The kernel of an instance. The first of a unit compiles it, which takes seconds, unless the cache has it.
    ///
    /// # Errors
    /// [`Error::NoLibrary`] if there is no compiler, [`Error::TooNew`] or [`Error::UnknownArch`] if none fits the driver and the
    /// GPU, [`Error::Refused`], [`Error::Compile`], or the driver's own.
    pub fn function(&self, instance: &Instance) -> Result<Arc<Function>> {
        let name = instance.name();
        if let Some(function) = lock(&self.functions).get(&name) {
            return Ok(function.clone());
        }
        let function = Arc::new(self.module(&instance.unit())?.function(instance)?);
        // Another thread may have been faster; both are the same.
        Ok(lock(&self.functions).entry(name).or_insert(function).clone())
    }

    /// As [`Modules::function`], for the instance of an op for some dtypes, heads and a tile; none where there is no such instance. What was
    /// asked for before is found by a look into a table, without an allocation.
    ///
    /// # Errors
    /// As [`Modules::function`].
    pub fn find(
        &self,
        op: &'static str,
        dtypes: &[Element],
        head_dim: Option<u32>,
        tile: Option<Tile>,
    ) -> Result<Option<Arc<Function>>> {
        let mut all = [None; MOST_DTYPES];
        let Some(asked) = all.get_mut(..dtypes.len()) else { return Ok(None) };
        asked.iter_mut().zip(dtypes).for_each(|(asked, dtype)| *asked = Some(*dtype));
        let asked = (op, all, head_dim, tile);
        if let Some(function) = lock(&self.asked).get(&asked) {
            return Ok(function.clone());
        }
        let instance = table::find(op).and_then(|kernel| kernel.instance(dtypes, head_dim));
        let instance =
            instance.map(|instance| tile.map_or(instance.clone(), |tile| instance.with_tile(tile)));
        let function = instance.map(|instance| self.function(&instance)).transpose()?;
        lock(&self.asked).insert(asked, function.clone());
        Ok(function)
    }

    /// Where the modules came from so far.
    pub fn counts(&self) -> Counts {
        Counts { compiled: lock(&self.compiled).len(), from_disk: self.n_from_disk.load(Ordering::Relaxed) }
    }

    /// The time that compilations took so far.
    pub fn compile_time(&self) -> Duration {
        Duration::from_nanos(self.compiling.load(Ordering::Relaxed))
    }

    /// The version of the compiler, such as `13.0`; none before it was needed.
    pub fn compiler_version(&self) -> Option<String> {
        self.compilers.loaded().map(|compiler| compiler.nvrtc.version().to_owned())
    }

    /// Why the cache was not written, if so; the kernels work without it.
    pub fn cache_problem(&self) -> Option<String> {
        self.cache.problem()
    }

    fn module(&self, unit: &Unit) -> Result<Module> {
        let slot = lock(&self.units).entry(unit.clone()).or_default().clone();
        let mut slot = lock(&slot);
        if let Some(module) = &*slot {
            return Ok(module.clone());
        }
        let module = self.load(unit)?;
        *slot = Some(module.clone());
        Ok(module)
    }

    fn load(&self, unit: &Unit) -> Result<Module> {
        let mut compiler = self.compilers.current()?;
        loop {
            match self.load_by(&compiler, unit) {
                Err(Error::Driver(error)) if error.is_of_image() => {
                    compiler = self.compilers.instead_of(&compiler, error)?;
                }
                loaded => return loaded,
            }
        }
    }

    fn load_by(&self, Compiler { nvrtc, arch }: &Compiler, unit: &Unit) -> Result<Module> {
        let key = Key::of(unit, arch, nvrtc.version());
        if let Some(module) = self.kept(unit, &key)? {
            return Ok(module);
        }
        let _timed = Timed { total: &self.compiling, start: Instant::now() };
        if self.compiles_ahead
            && let Some(_held) = self.cache.lock()
        {
            self.compile_ahead(nvrtc, arch, unit);
            if let Some(module) = self.kept(unit, &key)? {
                return Ok(module);
            }
        }
        let compiled = nvrtc.compile(unit, arch)?;
        lock(&self.compiled).insert(unit.clone());
        let module = self.context.load(&compiled.cubin)?;
        self.cache.write(&key, &compiled.cubin);
        Ok(module)
    }

    /// The module of a unit, if the cache has it under its key.
    fn kept(&self, unit: &Unit, key: &Key) -> Result<Option<Module>> {
        let Some(cubin) = self.cache.read(key) else { return Ok(None) };
        match self.context.load(&cubin) {
            Ok(module) => {
                let is_own = lock(&self.compiled).contains(unit);
                self.n_from_disk.fetch_add(usize::from(!is_own), Ordering::Relaxed);
                Ok(Some(module))
            }
            // The file is whole, and its code is none for this driver.
            Err(Error::Driver(error)) if error.is_of_image() => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Fills the cache with a unit and those that are needed with it.
    fn compile_ahead(&self, nvrtc: &Nvrtc, arch: &str, unit: &Unit) {
        let n_threads = thread::available_parallelism().map_or(1, usize::from);
        compile::fill(
            nvrtc,
            &self.cache,
            arch,
            compile::together(arch, unit),
            n_threads,
            &|unit, outcome| {
                // What fails is compiled again when it is needed, and its error comes out there.
                if let Outcome::Compiled(..) = outcome {
                    lock(&self.compiled).insert(unit.clone());
                }
            },
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_asked_for_has_room() {
        assert!(table::all().flat_map(|kernel| kernel.dtypes).all(|dtypes| dtypes.len() <= MOST_DTYPES));
    }
}
