package embedded

import (
	"fmt"
	"os"
	"strings"
	"testing"
)

func TestOrdinaryUser(t *testing.T) {
	var who *account // this one, if it is no root
	if os.Geteuid() == 0 {
		who = &account{uid: 65534, gid: 65534}
	}
	o := begin(t, who, "")
	o.wait(t)
	uid := os.Geteuid()
	if who != nil {
		uid = int(who.uid)
	}
	if got := query(t, o.URL, `SELECT 'answered'`); got != "answered" {
		t.Error(got)
	}
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", o.PID))
	if err != nil || !strings.Contains(string(status), fmt.Sprintf("\nUid:\t%d\t", uid)) {
		t.Errorf("the server is not run by user %d (%v):\n%s", uid, err, status)
	}
	o.finish(t)
	nothingLeft(t)
}

// Processes that start servers at the same time do not disturb each other.
func TestParallelProcesses(t *testing.T) {
	owners := []*owner{begin(t, nil, pristinePath(t)), begin(t, nil, pristinePath(t))}
	urls := map[string]bool{}
	for _, o := range owners {
		o.wait(t)
		urls[o.URL] = true
	}
	for _, o := range owners {
		query(t, o.URL, `SELECT 'answered'`)
	}
	if len(urls) != len(owners) {
		t.Errorf("%d servers share %d addresses", len(owners), len(urls))
	}
	for _, o := range owners {
		o.finish(t)
	}
	nothingLeft(t)
}

// The server of an owner that is killed ends with it, and the next Start
// removes the files, but not those of an owner who lives.
func TestOwnerKilled(t *testing.T) {
	living, killed := begin(t, nil, pristinePath(t)), begin(t, nil, pristinePath(t))
	living.wait(t)
	killed.wait(t)
	session(t, killed.URL)
	killed.kill(t)
	eventually(t, "the end of the server whose owner was killed", func() bool {
		return len(processesIn(killed.Home)) == 0
	})
	noSegment(t, killed.PID)
	if !exists(killed.Home) {
		t.Fatal("the test is wrong: the directory went without a sweep")
	}
	own(t, nil)
	if exists(killed.Home) {
		t.Error("Start did not remove the directory of an owner that was killed")
	}
	query(t, living.URL, `SELECT 'answered'`)
	living.finish(t)
}
