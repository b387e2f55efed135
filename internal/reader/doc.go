// Package reader finds what lies ahead of a consumer: the next events that it
// wants, and which positions on the way have none.
//
// It knows the log, the frontier's Value, where a consumer stands, what it wants,
// and how many events a batch has. It must never know the loop: no batches, no
// failures, no checkpoints, no tables but the log's. It decides nothing about
// progress; [Page.Cross] says what going over a page would mean.
//
// Three rules make a page true:
//
//   - The Value is taken before the read. So a position that is missing in the
//     read, at or below Safe and in no doubt, is void.
//   - Late events are read after new ones, in a later snapshot. So an aggregate's
//     next version is never delivered before a late one.
//   - Each read proves the incarnation of the Value on its own connection
//     (package incarnation). A page counts in that incarnation only.
package reader
