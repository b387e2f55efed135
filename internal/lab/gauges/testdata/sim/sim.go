// Package sim is not library.
package sim

var X int
