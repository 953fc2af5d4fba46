package status_test

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"testing"

	"github.com/strakefs/strake/fs/status"
)

func TestOf(t *testing.T) {
	for _, c := range []struct {
		name  string
		err   error
		kind  status.Kind
		errno syscall.Errno
	}{
		{"nil", nil, status.OK, 0},
		{"kind", status.NotExist, status.NotExist, syscall.ENOENT},
		{"wrapped", fmt.Errorf("mdt: lookup: %w", status.Exist), status.Exist, syscall.EEXIST},
		{"text", status.Errorf(status.Refused, "no"), status.Refused, syscall.EACCES},
		{"wrapped text", fmt.Errorf("a: %w", status.Errorf(status.Quota, "no")), status.Quota, syscall.EDQUOT},
		{"errno", fmt.Errorf("open: %w", syscall.ENOSPC), status.NoSpace, syscall.ENOSPC},
		{"cancelled", fmt.Errorf("a: %w", context.Canceled), status.Interrupted, syscall.EINTR},
		{"unknown", errors.New("x"), status.IO, syscall.EIO},
		{"protocol", status.Protocol, status.Protocol, syscall.EIO},
	} {
		t.Run(c.name, func(t *testing.T) {
			if k := status.Of(c.err); k != c.kind {
				t.Errorf("kind %v, want %v", k, c.kind)
			}
			if e := status.Errno(c.err); e != c.errno {
				t.Errorf("errno %v, want %v", e, c.errno)
			}
		})
	}
}
