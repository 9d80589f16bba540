//! Hosts workflows and activities on their task queues.
