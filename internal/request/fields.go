package request

// structFields are the names of all fields of runtime-spec 1.3's structures, sorted. A test derives them again from the
// Go types.
var structFields = [...]string{
	"DNSSearchList", "access", "action", "additionalGids", "affinity", "allow", "allowUnqualifiedDNSQuery",
	"allowedAddress", "ambient", "anet", "annotations", "apparmorProfile", "architectures", "args", "blockIO",
	"bounding", "bps", "burst", "capabilities", "cappedCPU", "cappedMemory", "cgroupsPath", "checkBeforeUpdate",
	"chflags", "class", "classID", "closID", "commandLine", "configureAllowedAddress", "consoleSize",
	"containerID", "count", "cpu", "cpus", "createContainer", "createRuntime", "credentialSpec", "cwd",
	"deadline", "defaultAction", "defaultErrnoRet", "defrouter", "destination", "deviceTree", "devices",
	"disableOOMKiller", "domain", "domainname", "dtdevs", "effective", "enableMonitoring", "endpointList",
	"enforceStatfs", "env", "errnoRet", "execCPUAffinity", "fileMode", "final", "firstGFN", "firstMFN", "flags",
	"format", "freebsd", "gid", "gidMappings", "group", "hard", "hcaHandles", "hcaObjects", "height", "hooks",
	"host", "hostID", "hostname", "hugepageLimits", "hwconfig", "hyperv", "hypervisor", "id", "idType", "idle",
	"ignoreFlushesDuringBoot", "image", "index", "inheritable", "initial", "initrd", "intelRdt", "interface",
	"ioPriority", "iomems", "iops", "ip4", "ip4Addr", "ip6", "ip6Addr", "irqs", "jail", "kernel", "kernelTCP",
	"l3CacheSchema", "layerFolders", "leafWeight", "limit", "limitpriv", "linkProtection", "linkname", "linux",
	"listenerMetadata", "listenerPath", "lowerLink", "macAddress", "major", "mask", "maskedPaths",
	"maxShmMemory", "maximum", "memBwSchema", "memory", "memoryPolicy", "mems", "milestone", "minor", "mlock",
	"mode", "mount", "mountLabel", "mounts", "name", "names", "namespaces", "nanosecs", "ncpus", "netDevices",
	"network", "networkNamespace", "networkSharedContainerName", "nice", "noNewPrivileges", "nodes", "nrMFNs",
	"ociVersion", "oomScoreAdj", "op", "options", "pageSize", "parameters", "parent", "path", "period",
	"permitted", "personality", "physical", "pids", "policy", "poststart", "poststop", "prestart", "priorities",
	"priority", "process", "quota", "quotas", "rate", "rawSockets", "rdma", "readonly", "readonlyPaths",
	"realtimePeriod", "realtimeRuntime", "reservation", "reservedPorts", "resources", "rlimits", "root",
	"rootfsPropagation", "runtime", "sandboxSize", "scheduler", "schemata", "seccomp", "secs", "selinuxLabel",
	"servicing", "setHostname", "shares", "size", "socketAf", "soft", "solaris", "source", "startContainer",
	"storage", "suser", "swap", "swappiness", "syscalls", "sysctl", "sysvmsg", "sysvsem", "sysvshm", "terminal",
	"throttleReadBpsDevice", "throttleReadIOPSDevice", "throttleWriteBpsDevice", "throttleWriteIOPSDevice",
	"timeOffsets", "timeout", "type", "uid", "uidMappings", "umask", "unified", "useHierarchy", "user",
	"username", "utilityVMPath", "value", "valueTwo", "vcpus", "vm", "vnet", "vnetInterfaces", "weight",
	"weightDevice", "width", "windows", "zos",
}

// mapFields are those whose values are maps: their keys belong to users.
var mapFields = [...]string{
	"annotations", "netDevices", "rdma", "sysctl", "timeOffsets", "unified",
}
