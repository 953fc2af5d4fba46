package param

import (
	"bytes"
	"net"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"
)

// helperEnv makes the test binary a peer: it names the socket.
const helperEnv = "STRAKE_TEST_PARAM_SOCKET"

// TestPeerHelper is not a test: it is the process that askAs starts.
func TestPeerHelper(t *testing.T) {
	path := os.Getenv(helperEnv)
	if path == "" {
		t.Skip("runs as a helper of TestWhoMayTalk only")
	}
	c, err := net.DialTimeout("unix", path, 10*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(10 * time.Second)); err != nil {
		t.Fatal(err)
	}
	_, _ = c.Write([]byte(`{"v":1,"op":"get","pattern":"**"}` + "\n"))
	var got bytes.Buffer
	_, _ = got.ReadFrom(c) // a reset ends it as well
	t.Log(got.String())
}

// askAs connects to a socket as another user and returns what came back.
func askAs(t *testing.T, uid uint32, path string) string {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	copied := tempFolder(t) + "/peer" // where the other user may execute it
	b, err := os.ReadFile(exe)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(copied, b, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(strings.TrimSuffix(copied, "/peer"), 0o755); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(copied, "-test.run=^TestPeerHelper$", "-test.v")
	cmd.Env = append(os.Environ(), helperEnv+"="+path)
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return string(out)
}
