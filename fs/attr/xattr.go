package attr

import "strings"

// Extended attribute names, prefixes and bounds: xattr(7).
const (
	XattrUser         = "user."
	XattrTrusted      = "trusted."
	XattrSecurity     = "security."
	XattrCapability   = "security.capability"
	XattrACLAccess    = "system.posix_acl_access"
	XattrACLDefault   = "system.posix_acl_default"
	XattrLustre       = "lustre."
	XattrStrake       = "strake."
	XattrNameMax      = 255
	XattrValueMax     = 64 << 10
	XattrListMax      = 64 << 10
	XattrInlineMax    = 1 << 10
	XattrFlagCreate   = 1
	XattrFlagReplace  = 2
	XattrPerInodeMax  = 1 << 20
	XattrCountPerNode = 4096
)

// XattrStored reports whether a name is in a namespace whose values the file system stores as they are.
func XattrStored(name string) bool {
	for _, p := range []string{XattrUser, XattrTrusted, XattrSecurity} {
		if strings.HasPrefix(name, p) && len(name) > len(p) {
			return true
		}
	}
	return false
}
