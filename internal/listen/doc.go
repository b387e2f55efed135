// Package listen keeps a connection that listens, and decides whether
// notifications arrive on it.
//
// It knows channels, payloads and what becomes of one connection. It must never
// know what the notifications are about, nor who acts on them.
//
// LISTEN belongs to a session: through a transaction-pooling proxy nothing would
// arrive. Notifications are lost while there is no connection. So they are hints.
// Poll as well where nothing may be missed.
package listen
