//! Memory of the process: buffers of operations, and regions that peers may reach.
