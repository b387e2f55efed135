// Package reader finds the next events that a consumer wants, and the positions without an
// event on the way.
//
// The package knows the log, the frontier's Value, a consumer's position and wanted events,
// and the size of a batch. It must not know the loop: no batches, no failures, no checkpoints,
// no tables but the log's. It decides nothing about progress; [Page.Cross] computes what
// passing a page means.
//
// Three rules make a page valid:
//
//   - The Value is taken before the read. So a position that is at or below Safe, not in doubt
//     and missing in the read is void.
//   - Late events are read after new events, in a later snapshot. So the next version of an
//     aggregate is never delivered before a late one.
//   - Each read proves the incarnation of the Value on its own connection (package
//     incarnation). A page is valid in that incarnation only.
package reader
