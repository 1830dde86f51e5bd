module localcluster/krew

go 1.26.0
