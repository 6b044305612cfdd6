(ns thrum.lab.report.html)
(defn page [_] "<html></html>")
