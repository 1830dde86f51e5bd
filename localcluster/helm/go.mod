module localcluster/helm

go 1.26.0
