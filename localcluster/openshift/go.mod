// OpenShift's own API. Nothing of it is built: the CRDs that the upgrade mutex stands on are files of this module.
module localcluster/openshift

go 1.26.0

require github.com/openshift/api v0.0.0-20260318185450-1f2fa3f09f4e
