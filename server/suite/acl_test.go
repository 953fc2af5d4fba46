package suite

import (
	"strings"
	"testing"
)

// compareScript runs one shell script in a folder of the reference file system and in one of the mount, and compares
// what it prints.
func compareScript(t *testing.T, script string) {
	t.Helper()
	small(t, func(t *testing.T, c *cluster) {
		want := strings.Split(shell(t, reference(t), script), "\n")
		got := strings.Split(shell(t, c.folder(t), script), "\n")
		for i := range max(len(want), len(got)) {
			var w, g string
			if i < len(want) {
				w = want[i]
			}
			if i < len(got) {
				g = got[i]
			}
			if w != g {
				from := max(0, i-12)
				t.Fatalf("line %d is %q, want %q; before it:\n%s", i+1, g, w, strings.Join(want[from:min(i, len(want))], "\n"))
			}
		}
	})
}

// TestAclInheritanceMatchesTheReference (case 39): {no ACL, default ACL with and without a mask} x umask x {mkdir, open,
// mknod} x setgid folder.
func TestAclInheritanceMatchesTheReference(t *testing.T) {
	need(t, "setfacl", "getfacl")
	compareScript(t, `
show() { stat -c '%n %a %u %g %F' "$1"; getfacl -cnp "$1"; }
for acl in none 'd:u::rwx,d:g::rx,d:o::-' 'd:u::rwx,d:u:1001:rwx,d:g::rx,d:m::rx,d:o::r' 'd:u::rw,d:u:1001:rw,d:g:2001:rwx,d:g::rw,d:m::rwx,d:o::rwx'; do
 for mask in 022 077 000; do
  for sgid in 0755 2775; do
   d="d-$mask-$sgid-$(printf %s "$acl" | tr -c 'a-z0-9\n' _)"
   (umask 022; mkdir "$d"); chgrp 2001 "$d"; chmod $sgid "$d"
   [ "$acl" = none ] || setfacl -m "$acl" "$d"
   echo "== $d"
   ( cd "$d"; umask $mask; mkdir sub; : > file; mkfifo fifo; mknod null c 1 3; mkdir sub/sub; : > sub/file
     for f in sub file fifo null sub/sub sub/file; do show $f; done
     chmod 640 file; show file; chmod g+w sub; show sub
     cp -a file copy; show copy; cp file plain; show plain )
  done
 done
done`)
}

// TestAclEditingMatchesTheReference: what setfacl and chmod do to each other, and removal.
func TestAclEditingMatchesTheReference(t *testing.T) {
	need(t, "setfacl", "getfacl", "getfattr")
	compareScript(t, `
show() { stat -c '%n %a' "$1"; getfacl -cnp "$1"; getfattr --absolute-names -m - -d -e hex "$1" 2>&1 | grep -v '^# file' || true; }
umask 022
: > f; mkdir d
setfacl -m u:1001:rw,g:2001:r f; show f
chmod 700 f; show f
chmod 770 f; show f
setfacl -m m::r f; show f
setfacl -x u:1001 f; show f
setfacl -b f; show f
setfacl -m u::rwx,g::r,o::- f; show f          # no more than mode bits: no xattr is kept
setfacl -d -m u:1001:rwx d; show d
setfacl -k d; show d
setfacl -d -m u:1001:rwx f 2>/dev/null && echo set || echo refused
setfattr -n system.posix_acl_access -v 0x0200 f 2>/dev/null && echo set || echo refused
ln -s f l; setfacl -P -m u:1001:r l 2>/dev/null; getfacl -cnp f`)
}

// TestAclDecidesAccess: named users and groups, the mask, and the order of the checks.
func TestAclDecidesAccess(t *testing.T) {
	need(t, "setfacl", "setpriv")
	compareScript(t, `
try() { # uid gid groups what
  setpriv --reuid $1 --regid $2 $3 sh -c "$4" 2>/dev/null && echo "$1 $2 $3 $4: yes" || echo "$1 $2 $3 $4: no"; }
umask 022; chmod 755 .
echo text > f; chmod 600 f; mkdir d; chmod 700 d; echo in > d/x
for acl in u:1001:r u:1001:rw g:2001:r g:2001:rw,u:1001:- g::rw,m::r u:1001:rw,m::- o::r,g:2001:-; do
  setfacl -b f; setfacl -m "$acl" f; chgrp 2002 f
  for who in '1001 1001 --clear-groups' '1002 2001 --clear-groups' '1003 1003 --groups=2001' '1004 2002 --clear-groups' '1005 1005 --groups=2001,2002'; do
    set -- $who
    try $1 $2 $3 'cat f'; try $1 $2 $3 'echo y >> f'; try $1 $2 $3 'test -r f'; try $1 $2 $3 'test -w f'
  done
done
setfacl -m u:1001:x,g:2001:rx d
for who in '1001 1001 --clear-groups' '1002 2001 --clear-groups' '1003 1003 --clear-groups'; do
  set -- $who
  try $1 $2 $3 'cat d/x'; try $1 $2 $3 'ls d'; try $1 $2 $3 'touch d/new'
done`)
}

// TestAttributesAndFlagsMatchTheReference: extended attributes of each namespace, by root and by users.
func TestAttributesAndFlagsMatchTheReference(t *testing.T) {
	need(t, "setfattr", "getfattr", "setpriv")
	compareScript(t, `
try() { ( "$@" ) >out 2>&1 && echo "ok: $*" || { sed 's/.*: //' out | head -1; echo "failed: $*"; }; }
user() { try setpriv --reuid 1001 --regid 1001 --clear-groups "$@"; }
umask 022; chmod 777 .
: > f; chown 1001:1001 f; ln -s f l; mkfifo p; mkdir s; chmod 1777 s; : > r
for n in user.a trusted.a security.a system.a nonsense.a user. user.$(printf %0250d 0) user.$(printf %0251d 0); do
  try setfattr -n $n -v value f; try getfattr -n $n f; user setfattr -n $n -v other f; user getfattr -n $n f
  try setfattr -h -n $n -v value l; try setfattr -n $n -v value p; user setfattr -n $n -v v s; user setfattr -n $n -v v r
done
getfattr -m - -d f | sort
user getfattr -m - -d f
try setfattr -x user.a f; try setfattr -x user.a f; try getfattr -n user.none f
try setfattr -n user.empty f; getfattr -n user.empty f
try setfattr -n user.long -v $(printf %03000d 0) f; getfattr -n user.long f | wc -c`)
}
