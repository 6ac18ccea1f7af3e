//! Configuration errors as data: a text, and what must be said about it.

use super::*;
