// Package listen keeps a listening connection, and decides whether notifications arrive on it.
//
// The package knows channels, payloads and the state of one connection. It must never know the
// meaning of a notification.
//
// LISTEN belongs to a session, so no notification arrives through a transaction-pooling proxy.
// Notifications are lost while there is no connection. They are hints: poll as well if no
// change may be missed.
package listen
