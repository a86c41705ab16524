//! Models behind the server of OpenAI's API: [`served`] is one of them, [`backend`] gives the server all, and [`prompts`] makes
//! prompts of conversations.

mod backend;
mod prompts;
mod served;

use std::net::{IpAddr, SocketAddr, TcpListener};
use std::path::Path;
use std::sync::{Arc, Mutex};

use oarlock_serve::{ApiKey, Ended, Options, serve, stop};

use self::backend::Models;
pub use self::served::Served;
use crate::config::render::visible;
use crate::console::{Outcome, eprint, print};
use crate::error::{Error, Result};
use crate::launch;

/// Takes an address, so that one which is taken is known before a model is read.
///
/// # Errors
/// An address that is taken, or not of this machine.
pub fn listen(host: IpAddr, port: u16) -> Result<TcpListener> {
    let address = SocketAddr::new(host, port);
    TcpListener::bind(address).map_err(|cause| {
        Error::Usage(format!("cannot listen at {address}: {cause}; name another --port or --host"))
    })
}

/// The keys of a file, one on each line.
///
/// # Errors
/// A file that cannot be read, has no key, or one that no client can send.
pub fn keys(path: &Path) -> Result<Vec<ApiKey>> {
    let text =
        oarlock_comm::read_text(path, oarlock_comm::MAX_CONFIG_BYTES).map_err(Error::io("read", path))?;
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    let keys: Option<Vec<ApiKey>> = lines.map(ApiKey::new).collect();
    keys.filter(|keys| !keys.is_empty()).ok_or_else(|| {
        Error::Usage(format!(
            "{}: expected a key on each line, of letters, digits and marks without spaces",
            path.display()
        ))
    })
}

/// Serves until a signal asks for the end.
pub fn run(listener: TcpListener, models: Vec<Served>, options: Options) -> Outcome {
    let address = listener.local_addr().map_err(Error::io("find", "the address of the server"))?;
    let names: Vec<&str> = models.iter().map(Served::name).collect();
    if !address.ip().is_loopback() && options.api_keys.is_empty() {
        eprint("warning: whoever reaches this address can use the model; --api-key-file F asks for a key\n");
    }
    let listed = names.iter().map(|name| visible(name, 200)).collect::<Vec<_>>().join(", ");
    print(&format!("serving {listed} at http://{address}/v1; Ctrl-C ends it\n"))?;
    let (stop, stopped) = stop();
    let stop = Mutex::new(Some(stop));
    // A second signal ends the program at once.
    launch::on_stop(move |signal| match stop.lock().ok().and_then(|mut stop| stop.take()) {
        Some(stop) => {
            eprint("note: what has begun is finished, within 30 seconds; once more ends it at once\n");
            stop.stop();
        }
        None => std::process::exit(128 + signal),
    })?;
    let Ended { n_cut_off } = serve(listener, Arc::new(Models::new(models)), options, stopped)
        .map_err(|error| Error::Other(Box::new(error)))?;
    if n_cut_off > 0 {
        eprint(&format!("note: {n_cut_off} answers were not complete\n"));
    }
    Ok(())
}
