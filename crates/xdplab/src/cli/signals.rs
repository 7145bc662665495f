//! SIGINT and SIGTERM ask a command to end; a second one ends the process, whose guards the kernel undoes.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use signal_hook::consts::{SIGINT, SIGTERM};

use crate::error::{Error, Result};

/// A flag that a SIGINT or SIGTERM sets. A second signal ends the process at once: network namespaces, links and programs
/// go with its descriptors.
pub(crate) fn stop_flag() -> Result<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        // The order matters: on the first signal the flag is still clear when the conditional shutdown looks at it.
        signal_hook::flag::register_conditional_shutdown(signal, 128 + signal, Arc::clone(&stop))
            .and_then(|_| signal_hook::flag::register(signal, Arc::clone(&stop)))
            .map_err(|error| Error::io("listen for SIGINT and SIGTERM", "sigaction", &error))?;
    }
    Ok(stop)
}
