// Package repository_test checks what the compiler does not: what the packages import, and what the
// texts name.
package repository_test

import (
	"os"
	"testing"
)

// The tests run in the root of the repository.
func TestMain(m *testing.M) {
	if err := os.Chdir("../../.."); err != nil {
		panic(err)
	}
	os.Exit(m.Run())
}
