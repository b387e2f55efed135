// Package table runs durable jobs that are rows of a table of your own.
package table
