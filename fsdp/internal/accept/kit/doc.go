// Package kit has the common helpers of the acceptance tests: ranks, models, batches, groups that
// count or check, file systems that fail, devices in place of the processor, and comparisons to the
// bit. Only tests import it.
package kit
