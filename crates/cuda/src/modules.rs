//! The kernels of a context: compiled when they are first asked for, kept on disk, loaded once.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::attention::Tile;
use crate::cache::{Cache, Key};
use crate::driver::{Context, Function, Module};
use crate::element::Element;
use crate::error::{Error, Result};
use crate::kernel::Instance;
use crate::libraries::Libraries;
use crate::nvrtc::{self, Compiler, Compilers};
use crate::source::{HEADERS, Unit};
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
    n_compiled: AtomicUsize,
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
            n_compiled: AtomicUsize::new(0),
            n_from_disk: AtomicUsize::new(0),
            compiling: AtomicU64::new(0),
        })
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
        Counts {
            compiled: self.n_compiled.load(Ordering::Relaxed),
            from_disk: self.n_from_disk.load(Ordering::Relaxed),
        }
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
        let key = key(unit, arch, nvrtc.version());
        if let Some(cubin) = self.cache.read(&key) {
            match self.context.load(&cubin) {
                Ok(module) => {
                    self.n_from_disk.fetch_add(1, Ordering::Relaxed);
                    return Ok(module);
                }
                // The file is whole, and its code is none for this driver.
                Err(Error::Driver(error)) if error.is_of_image() => {}
                Err(error) => return Err(error),
            }
        }
        let start = Instant::now();
        let compiled = nvrtc.compile(unit, arch)?;
        let nanos = u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.compiling.fetch_add(nanos, Ordering::Relaxed);
        self.n_compiled.fetch_add(1, Ordering::Relaxed);
        let module = self.context.load(&compiled.cubin)?;
        self.cache.write(&key, &compiled.cubin);
        Ok(module)
    }
}

/// What the machine code of a unit depends on.
fn key(unit: &Unit, arch: &str, version: &str) -> Key {
    let mut key = Key::new();
    key.add(version);
    nvrtc::options(unit, arch).iter().for_each(|option| key.add(option));
    for source in [unit.source].iter().chain(HEADERS) {
        key.add(source.file);
        key.add(source.text);
    }
    key
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source;

    #[test]
    fn what_is_asked_for_has_room() {
        assert!(table::all().flat_map(|kernel| kernel.dtypes).all(|dtypes| dtypes.len() <= MOST_DTYPES));
    }

    #[test]
    fn a_key_depends_on_all_that_the_code_depends_on() {
        let unit = table::units().remove(0);
        let base = key(&unit, "sm_90a", "13.0").name();
        assert_eq!(base, key(&unit, "sm_90a", "13.0").name());
        let mut others = vec![key(&unit, "sm_80", "13.0"), key(&unit, "sm_90a", "13.1")];
        let mut changed = unit.clone();
        changed.source.text = "";
        others.push(key(&changed, "sm_90a", "13.0"));
        let mut defined = unit.clone();
        defined.defines.push(("X", "1".into()));
        others.push(key(&defined, "sm_90a", "13.0"));
        others.push(key(&Unit { source: source::COPY, ..unit }, "sm_90a", "13.0"));
        let mut names: Vec<String> = others.iter().map(Key::name).chain([base]).collect();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), 6);
    }
}
