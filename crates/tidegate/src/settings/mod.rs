//! What the tables of a configuration are made of: those of doors, stores and rules.
//!
//! A leaf: it uses `tidegate-core`, and knows neither the file as a whole (`config/`) nor what the
//! settings are used for.
//!
//! - [`files`]: reads files, of which a configuration consists and which it names
//! - [`listen`], [`units`]: addresses, networks, sizes and spans of time
//! - [`secret`], [`tls`]: secrets and certificates, which a table names and does not contain;
//!   [`client_names`]: whose certificates are good; [`mask`]: hides secrets in what is shown
//! - [`rule`], [`limits`]: the table of a rule, and its limits
//! - [`draft`]: from such tables to rules; [`change`]: one that is changed while the server runs
//! - [`in_force`]: all rules of one moment
//! - [`read`], [`names`]: text to one table, and which names are known
//! - [`problem`]: what is wrong, where, and what would be right

pub(crate) mod change;
pub mod client_names;
pub(crate) mod draft;
pub(crate) mod files;
pub(crate) mod in_force;
pub mod limits;
pub mod listen;
mod mask;
pub(crate) mod names;
pub mod problem;
pub(crate) mod read;
pub mod rule;
pub(crate) mod secret;
pub mod tls;
pub mod units;
