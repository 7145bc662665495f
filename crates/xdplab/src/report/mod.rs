//! What is printed of a record. It sees the record and nothing else.

mod across;
mod calibration;
mod explain;
mod imported;
mod labs;
mod pool;
mod scenario;
mod settings;
mod text;

pub use across::across_text;
pub use calibration::calibration_text;
pub use explain::explain_text;
pub use imported::import_text;
pub use labs::labs_text;
pub use pool::{kernel_pool_text, pool_bounds_text, pool_text, published_text};
pub use scenario::{last_done_text, scenario_text};
pub use settings::settings_text;
pub use text::case_text;
