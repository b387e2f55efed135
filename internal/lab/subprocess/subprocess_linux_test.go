package subprocess_test

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/pgfrontier/worker/internal/lab/subprocess"
)

// roleVariable in the environment makes the test program a parent, which starts
// a child and prints its pid, or a child. Both wait to be ended.
const roleVariable = "CHILD_TEST_ROLE"

func TestMain(m *testing.M) {
	switch os.Getenv(roleVariable) {
	case "parent":
		p, err := subprocess.Start(again("child"), nil)
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		fmt.Println(p.Pid())
		select {}
	case "child":
		time.Sleep(time.Minute)
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// again is a command for this program in a role.
func again(role string) *exec.Cmd {
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), roleVariable+"="+role)
	return cmd
}

func TestAChildEndsWithItsParent(t *testing.T) {
	cmd := again("parent")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	said := make(chan string, 1)
	parent, err := subprocess.Start(cmd, func() {
		line, _ := bufio.NewReader(out).ReadString('\n')
		said <- line
	})
	if err != nil {
		t.Fatal(err)
	}
	defer parent.Kill()
	grandchild, err := strconv.Atoi(strings.TrimSpace(<-said))
	if err != nil {
		t.Fatal(err)
	}
	if group, err := syscall.Getpgid(grandchild); err != nil || group != grandchild {
		t.Errorf("the child's process group is %d, want its own, %d; %v", group, grandchild, err)
	}
	if !parent.Running() {
		t.Error("the parent has ended")
	}
	parent.Kill()
	if parent.Running() || parent.State().Success() || parent.Signal(os.Kill) == nil {
		t.Errorf("killed, the parent is %v", parent.State())
	}
	for deadline := time.Now().Add(2 * time.Minute); alive(grandchild); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the child outlives its parent")
		}
	}
}

// alive reports whether a process runs. One that nobody has waited for does not.
func alive(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err == nil && !strings.Contains(string(stat), ") Z ")
}

func TestAProgramThatIsNotThere(t *testing.T) {
	if p, err := subprocess.Start(exec.Command("/nonexistent/program"), nil); err == nil {
		p.Kill()
		t.Error("it was started")
	}
}
