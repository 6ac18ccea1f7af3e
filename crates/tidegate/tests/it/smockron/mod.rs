//! The Smockron door: its vectors, and the real program with gatekeepers that others wrote.

mod vectors;
