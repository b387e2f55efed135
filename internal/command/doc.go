// Package command has what the commands of this module share: signals, flags,
// -h, exit statuses and progress.
//
// It knows nothing of what a command does, and prints nothing of its own accord.
package command
