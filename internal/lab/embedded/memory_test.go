package embedded

import (
	"os"
	"testing"
)

func TestServersAreInMemoryWhereItHasRoom(t *testing.T) {
	chosen := t.TempDir()
	t.Setenv("TMPDIR", chosen)
	if got := (Config{}).root(); got != chosen {
		t.Errorf("with TMPDIR=%s the directory is %s", chosen, got)
	}
	t.Setenv("TMPDIR", "")
	want := os.TempDir()
	if hasRoom(memory, memoryNeeded) {
		want = memory
	}
	if got := (Config{}).root(); got != want {
		t.Errorf("without TMPDIR the directory is %s, want %s", got, want)
	}
	if got := (Config{OnDisk: true}).root(); got != os.TempDir() {
		t.Errorf("on disk the directory is %s, want %s", got, os.TempDir())
	}
	if hasRoom(memory, 1<<60) {
		t.Error("memory has room for an exabyte")
	}
}
